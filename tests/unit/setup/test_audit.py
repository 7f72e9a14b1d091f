"""Set-up installs published files only, and the audit of dependencies reports vulnerabilities."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys

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


@pytest.mark.parametrize(
    ("printed", "status", "message"),
    [
        ("No known vulnerabilities found", 0, "No known vulnerabilities found"),
        ("Found 1 known vulnerability in 1 package", 1, "Found 1 known vulnerability in 1 package"),
        ("Traceback\nError: no route", 1, "audit: the advisories cannot be fetched (Error: no route); try again"),
    ],
)
def test_the_audit_reports_vulnerabilities_or_that_the_service_is_unreachable(tmp_path, printed, status, message):
    name = f"audit-{hashlib.sha256((SETUP / 'audit.lock').read_bytes()).hexdigest()[:16]}"
    tool = tmp_path / "hvdtrain" / name / "bin" / "pip-audit"
    tool.parent.mkdir(parents=True)
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


def test_each_accepted_vulnerability_has_a_reason():
    for line in (SETUP / "audit-known.txt").read_text().splitlines():
        assert not line or line.startswith("#") or re.fullmatch(r"(CVE|GHSA|PYSEC)-[\w-]+  \S.{20,}\.", line), line
