"""Set-up installs published files only, and the audit of dependencies reports vulnerabilities."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from support.jobs import BIN, ROOT

SETUP = ROOT / "setup"
STACKS = sorted(path.name for path in (SETUP / "stacks").iterdir())


@pytest.mark.needs()
@pytest.mark.parametrize("stack", STACKS)
def test_every_pinned_version_is_in_the_lock_of_its_stack(stack):
    folder = SETUP / "stacks" / stack

    def pins(*files):
        return set(re.findall(r"^([a-z0-9-]+==\S+)", "\n".join(file.read_text() for file in files), re.M))

    assert pins(folder / "constraints.txt", *folder.glob("locked-only.txt")) == pins(folder / "requirements.lock")


@pytest.mark.parametrize(
    "lock", ["audit.lock", "wheel.lock", *(f"stacks/{stack}/requirements.lock" for stack in STACKS)]
)
def test_every_version_in_a_lock_has_its_hashes(lock):
    text = (SETUP / lock).read_text()
    assert "://" not in text
    pins = re.findall(r"^(\S+==\S+)[^\n]*\n((?:    --hash=sha256:[0-9a-f]{64}[ \\]*\n)*)", text, re.M)
    assert pins
    for pin, sums in pins:
        assert sums, pin


@pytest.mark.parametrize("known", [True, False])
def test_set_up_rejects_a_file_that_was_not_published(tmp_path, known):
    lock = SETUP / "stacks" / "all" / "requirements.lock"
    published = re.search(r"numpy==1.23.5.*?sha256:(\w+)", lock.read_text(), re.S)[1]

    def item(name, version, **source):
        return {"metadata": {"name": name, "version": version}, "download_info": {"url": "https://x/y.whl", **source}}

    items = [
        item("numpy", "1.23.5", archive_info={"hashes": {"sha256": published if known else "0" * 64}}),
        item("hvdtrain", "0.1", dir_info={"editable": True}),
        item("torch", "2.13.0+cpu", archive_info={"hashes": {"sha256": "0" * 64}}),
    ]
    (tmp_path / "report.json").write_text(json.dumps({"install": items}))
    words = [sys.executable, "-I", "-S", str(SETUP / "locked.py"), str(lock), str(tmp_path / "report.json")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert "not in requirements.lock, so not compared: torch 2.13.0+cpu" in done.stdout
    assert (done.returncode, "it is not the file that was published" in done.stderr) == (int(not known), not known)


def wheel(folder, name, *, requires="", outside=""):
    """A wheel with one module, and the SHA-256 of its file. outside: a file that pip does not install."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "")
        needs = f"Requires-Dist: {requires}\n" if requires else ""
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
        if outside:
            archive.writestr(outside, "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "end", ["installed", "on PYTHONPATH", "stopped by a second package", "killed while comparing", "not published"]
)
def test_the_report_of_pip_stays_until_all_that_is_installed_was_compared(tmp_path, end):
    """With a real pip: set-up makes environments that have a report anew (test_stacks.py)."""
    setup, venv = tmp_path / "setup", tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(venv)}))
    (site / "pip.pth").write_text(sysconfig.get_path("purelib"))
    (venv / ".hvdtrain-stack").write_text("small")
    (setup / "stacks" / "small").mkdir(parents=True)
    for name in ("install.sh", "locked.py"):
        shutil.copy(SETUP / name, setup)
    if end.startswith("killed"):
        (setup / "locked.py").write_text("import os; os.kill(os.getpid(), 9)")
    outside = "../../outside.py" if end.startswith("stopped") else ""
    sums = {"first": wheel(tmp_path, "first", requires="second", outside=outside), "second": wheel(tmp_path, "second")}
    if end == "not published":
        sums["second"] = "0" * 64
    pins = [f"{name}==1.0 \\\n    --hash=sha256:{digest}\n" for name, digest in sums.items()]
    (setup / "stacks" / "small" / "requirements.lock").write_text("".join(pins))
    (setup / "stacks" / "small" / "constraints.txt").write_text("first==1.0\nsecond==1.0\n")

    command = [setup / "install.sh", venv, "--no-index", "--find-links", tmp_path, "first"]
    elsewhere = tmp_path / "elsewhere"
    if end == "on PYTHONPATH":
        zipfile.ZipFile(tmp_path / "second-1.0-py3-none-any.whl").extractall(elsewhere)
    environment = {**os.environ, "PIP_CONFIG_FILE": os.devnull, "PYTHONPATH": str(elsewhere)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    complete = end in ("installed", "on PYTHONPATH")
    assert (site / "second.py").exists(), done.stderr
    assert (done.returncode == 0, (venv / ".hvdtrain-report.json").exists()) == (
        complete,
        not complete,
    ), done.stderr
    if not complete:
        assert subprocess.run(command, capture_output=True).returncode == 1, "it would write a report without `second`"


@pytest.mark.parametrize(
    ("printed", "status", "message"),
    [
        ("No known vulnerabilities found", 0, "No known vulnerabilities found"),
        ("Found 1 known vulnerability in 1 package", 1, "Found 1 known vulnerability in 1 package"),
        ("Traceback\nError: no route", 1, "audit: the advisories cannot be fetched (Error: no route); try again"),
    ],
)
def test_the_audit_reports_vulnerabilities_or_that_the_service_is_unreachable(tmp_path, printed, status, message):
    about = (SETUP / "audit.lock").read_bytes() + f"Python {platform.python_version()}\n".encode()
    tool = tmp_path / "hvdtrain" / f"audit-{hashlib.sha256(about).hexdigest()[:16]}" / "bin" / "pip-audit"
    tool.parent.mkdir(parents=True)
    (tool.parent.parent / "complete").touch()
    tool.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/words\nprintf "%s\\n" "{printed}"\nexit {status}\n')
    tool.chmod(0o755)
    done = subprocess.run(
        [SETUP / "audit.sh", BIN.parent, "-s", "osv"],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, message in done.stdout + done.stderr) == (status, True)
    given = (tmp_path / "words").read_text()
    assert "--strict" in given and "--ignore-vuln CVE-2024-10190" in given and given.endswith("-s osv\n")


PYTHON = """\
#!/bin/bash
# As far as a tool's environment asks it: installing takes a while, and is interrupted once.
case "$*" in
    -V) echo Python 3.99 ;;
    '-m venv '*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    '-m pip '*)
        echo installed >>"$HOME/log"
        touch "$(dirname "$0")/tool"
        sleep 0.3
        [[ -e $HOME/stay ]] || kill -9 $PPID
        ;;
esac
"""
TOOL = (
    'die() { exit 1; }; setup=$1 cache=$HOME venv=$HOME/venv; source "$setup/tool.sh"; ensure_tool wheel; echo "$tool"'
)


def test_a_tool_is_installed_once_and_completely(tmp_path):
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    command = ["bash", "-euo", "pipefail", "-c", TOOL, "bash", str(SETUP)]
    environment = {**os.environ, "HOME": str(tmp_path)}
    assert subprocess.run(command, env=environment).returncode != 0
    (tmp_path / "stay").touch()
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    (tool,) = {one.communicate()[0].strip() for one in both}
    assert [one.returncode for one in both] == [0, 0] and Path(tool, "bin", "tool").exists()
    assert (tmp_path / "log").read_text() == "installed\n" * 2, "once after the interruption"


def test_each_accepted_vulnerability_has_a_reason():
    for line in (SETUP / "audit-known.txt").read_text().splitlines():
        assert not line or line.startswith("#") or re.fullmatch(r"(CVE|GHSA|PYSEC)-[\w-]+  \S.{20,}\.", line), line
