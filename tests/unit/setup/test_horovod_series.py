"""Horovod's corrections are a series as Debian keeps them: patches with headers, in the order in which they apply."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs import ROOT

FOLDER = ROOT / "setup" / "horovod"
PATCHES = sorted(FOLDER.glob("*.patch"))
wheel_description = runpy.run_path(str(FOLDER.with_name("wheel_description.py")))
read_series, describe = (wheel_description[name] for name in ("read_series", "describe"))


def header(patch: Path) -> dict[str, str]:
    """The fields of a patch's header, in the form of DEP-3."""
    text = patch.read_text().partition("\n--- ")[0]
    fields = re.findall(r"^([A-Z][A-Za-z-]+): (.+(?:\n .+)*)$", text, re.M)
    assert "".join(f"{name}: {value}\n" for name, value in fields) == text, "nothing else is in the header"
    return dict(fields)


def test_the_series_lists_each_patch_once():
    assert sorted(read_series(FOLDER)) == PATCHES


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_each_patch_says_what_why_where_from_and_how_it_was_tested(patch):
    fields = header(patch)
    assert "\n " in fields["Description"], "its first line says what, and the rest why"
    assert ("Author" in fields) != ("Origin" in fields)
    assert ("Forwarded" in fields) != ("Applied-Upstream" in fields)
    assert re.fullmatch(r"no|not-needed|https://\S+", fields.get("Forwarded", "no"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", fields["Last-Update"])
    for name in re.findall(r"(?:tests|docs)/[\w/]+\.\w+", fields["Tested"]):
        assert (ROOT / name).exists()


@pytest.mark.matrix
def test_the_series_applies_to_the_published_source(tmp_path):
    download = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--no-build-isolation", "-d", tmp_path]
    subprocess.run([*download, "--no-binary", "horovod", "--require-hashes", "-r", FOLDER / "source.txt"], check=True)
    (archive,) = tmp_path.iterdir()
    shutil.unpack_archive(archive, tmp_path)
    source = tmp_path / archive.name.removesuffix(".tar.gz")
    for patch in read_series(FOLDER):
        command = ["patch", "-p1", "--fuzz=0", "--input", patch]
        done = subprocess.run(command, cwd=source, capture_output=True, text=True)
        assert done.returncode == 0 and "offset" not in done.stdout, done.stdout


def test_the_page_lists_the_patches_in_their_order():
    rows = re.findall(r"^\| \[(.+?)\]\(\.\./setup/horovod/(.+?)\)", (ROOT / "docs" / "horovod.md").read_text(), re.M)
    patches = read_series(FOLDER)
    assert rows == [(header(patch)["Description"].partition("\n")[0], patch.name) for patch in patches]


def test_a_wheel_is_built_again_for_other_changes_but_not_for_another_header(tmp_path):
    def described() -> object:
        return describe("0.28.1", folder)["patches"]

    folder = shutil.copytree(FOLDER, tmp_path / "horovod")
    before, patch = described(), folder / "core-timeline-thread.patch"
    patch.write_text(patch.read_text().replace("Forwarded: no", "Forwarded: not-needed"))
    assert described() == before
    patch.write_text(patch.read_text().replace("milliseconds(1)", "milliseconds(2)"))
    assert described() != before
