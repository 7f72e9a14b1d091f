"""Set-up installs published files only, and the audit of dependencies reports vulnerabilities.

Processes: uv or pip install into a real environment, and the audit is a shell script.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from support.environment import script
from support.jobs import BIN
from support.setup import SETUP, STACKS, pinned_uv


@pytest.mark.needs()
@pytest.mark.parametrize("lock", ["audit", "uv", "wheel", *(f"stacks/{stack}/requirements" for stack in STACKS)])
def test_a_lock_has_hashes_of_every_version_and_each_pin_of_its_stack(lock):
    file = SETUP / f"{lock}.lock"
    text = file.read_text()
    assert "://" not in text
    pins = re.findall(r"^(\S+==\S+)[^\n]*\n((?:    --hash=sha256:[0-9a-f]{64}[ \\]*\n)*)", text, re.M)
    assert pins and all(sums for _, sums in pins)
    if "stacks" in lock:
        files = (file.with_name("constraints.txt"), *file.parent.glob("locked-only.txt"))
        pinned = re.findall(r"^([a-z0-9-]+==\S+)", "\n".join(one.read_text() for one in files), re.M)
        assert set(pinned) == {pin for pin, _ in pins}


PUBLISHED, OTHER = "a" * 64, "b" * 64
LOCK = f"""\
first==1.0 \\
    --hash=sha256:{PUBLISHED} \\
    --hash=sha256:{OTHER}
torch==2.13.0 ; python_version < '3.12' \\
    --hash=sha256:{PUBLISHED}
"""
BY_UV = "-e .\nfirst==1.0\ntorch==2.13.0+cpu\n"
BY_PIP = {
    "install": [
        {"metadata": {"name": "First", "version": "1.0"}, "download_info": {}},
        {"metadata": {"name": "torch", "version": "2.13.0+cpu"}, "download_info": {}},
        {"metadata": {"name": "hvdtrain", "version": "0.1"}, "download_info": {"dir_info": {}}},
    ]
}


locked, settings = (runpy.run_path(str(SETUP / f"{name}.py")) for name in ("locked", "settings"))


@pytest.mark.parametrize("chosen", [BY_UV, json.dumps(BY_PIP)], ids=["uv", "pip"])
def test_what_was_chosen_gets_the_hashes_of_the_lock(tmp_path, capsys, chosen):
    (tmp_path / "lock").write_text(LOCK)
    (tmp_path / "chosen").write_text(chosen)
    locked["main"]([str(tmp_path / name) for name in ("lock", "chosen", "locked", "others")])
    assert capsys.readouterr().out.strip() == "not in lock, so not compared: torch 2.13.0+cpu"
    assert (tmp_path / "locked").read_text() == f"first==1.0 --hash=sha256:{PUBLISHED} --hash=sha256:{OTHER}\n"
    assert (tmp_path / "others").read_text() == "torch==2.13.0+cpu\n"


def wheel(folder, name, *, requires="", version="1.0", tag="py3-none-any"):
    """A wheel with one module, and the SHA-256 of its file."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "")
        needs = f"Requires-Dist: {requires}\n" if requires else ""
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        records = [f"{name}.py", *(f"{info}/{file}" for file in ("METADATA", "WHEEL", "RECORD"))]
        archive.writestr(f"{info}/RECORD", "".join(f"{record},,\n" for record in records))
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Installer:
    """install.sh, and an environment with the stack `small` of the wheels `first`, which requires `second`."""

    def __init__(self, folder: Path, uv: str) -> None:
        self.setup, self.venv, self.wheels = folder / "setup", folder / "venv", folder / "wheels of [mine]"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.venv], check=True)
        self.site = Path(sysconfig.get_path("purelib", vars={"base": str(self.venv)}))
        (self.site / "pip").symlink_to(Path(sysconfig.get_path("purelib"), "pip"))
        (self.venv / ".hvdtrain-stack").write_text("small")
        (self.setup / "stacks" / "small").mkdir(parents=True)
        for name in ("install.sh", "whole.sh", "locked.py", "uv.sh", "settings.py", "uv.lock"):
            shutil.copy(SETUP / name, self.setup)
        requires = {"first": "second", "second": ""}
        self.sums = {name: wheel(self.wheels, name, requires=needs) for name, needs in requires.items()}
        links = "file://" + str(self.wheels).replace(" ", "%20")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))},
            "HVDTRAIN_UV": uv,
            **({"UV_NO_INDEX": "1", "UV_FIND_LINKS": links, "UV_CACHE_DIR": str(folder / "cache")} if uv else {}),
            **{"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": links},
        }

    def install(self, *arguments: str | Path, lock: dict[str, str] | None = None, **variables: str) -> tuple[int, str]:
        """The exit status and the output for a lock with these hashes in place of the right ones."""
        sums = {**self.sums, **(lock or {})}
        pins = [f"{name}==1.0 \\\n    --hash=sha256:{digest}\n" for name, digest in sums.items()]
        (self.setup / "stacks" / "small" / "requirements.lock").write_text("".join(pins))
        (self.setup / "stacks" / "small" / "constraints.txt").write_text("first==1.0\nsecond==1.0\n")
        command = [self.setup / "install.sh", self.venv, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env={**self.environment, **variables})
        return done.returncode, done.stdout + done.stderr

    def installed(self) -> set[str]:
        """Those that are there, and `incomplete` if more may be missing."""
        marks = {"incomplete"} if (self.venv / ".hvdtrain-installing").exists() else set()
        return marks | {name for name in self.sums if (self.site / f"{name}.py").exists()}


@pytest.mark.parametrize("by", ["uv where it can be had", "pip"])
def test_only_files_that_the_lock_has_are_installed(by, tmp_path):
    one = Installer(tmp_path, "" if by == "pip" else pinned_uv())
    status, said = one.install("first", lock={"second": "0" * 64})
    assert (status, "a file is not the one that was published" in said) == (1, True), said
    assert one.installed() == {"incomplete"}, "the environment may have a part of what it needs"

    # What is on PYTHONPATH does not count as installed.
    (file,) = one.wheels.glob("second*.whl")
    zipfile.ZipFile(file).extractall(tmp_path / "elsewhere")
    assert one.install("first", PYTHONPATH=str(tmp_path / "elsewhere")) == (0, "")
    assert one.installed() == {"first", "second"}

    # Damaged packages of an interrupted set-up are installed again.
    (one.site / "second.py").unlink()
    status, said = one.install("first", HVDTRAIN_REINSTALL="yes")
    assert (status, one.installed()) == (0, {"first", "second"}), said


def test_uv_is_found_from_a_folder_with_a_space(tmp_path, monkeypatch):
    """Else tests that need it are skipped there."""
    (tmp_path / "a folder").symlink_to(SETUP)
    here = pinned_uv()
    monkeypatch.setattr("support.setup.SETUP", tmp_path / "a folder")
    assert pinned_uv() == here


@pytest.mark.parametrize("by", ["uv where it can be had", "pip"])
def test_what_the_constraints_leave_open_has_the_version_of_the_lock_where_that_fits(by, tmp_path):
    """PyTorch leaves the versions of some packages for CUDA open; its builds for another CUDA need others."""
    one = Installer(tmp_path, "" if by == "pip" else pinned_uv())
    wheel(one.wheels, "second", version="2.0")
    (one.setup / "stacks" / "small" / "locked-only.txt").write_text("second==1.0\n")
    (tmp_path / "constraints.txt").write_text("first==1.0\n")
    for wanted, version in (("second", "1.0"), ("second>=2", "2.0")):
        status, said = one.install("--show", "first", wanted, HVDTRAIN_CONSTRAINTS=str(tmp_path / "constraints.txt"))
        assert status == 0, said
        assert set(locked["chosen"](said)) == {"first==1.0", f"second=={version}"}


@pytest.mark.parametrize("by", ["uv where it can be had", "pip"])
def test_an_index_that_has_a_package_for_other_machines_only_does_not_hide_it(by, tmp_path):
    """Of the user's indexes, uv asks the additional ones first."""
    one = Installer(tmp_path, "" if by == "pip" else pinned_uv())
    (one.setup / "stacks" / "small" / "locked-only.txt").write_text("second==1.0\n")
    (tmp_path / "constraints.txt").write_text("first==1.0\n")
    wheel(others := tmp_path / "others", "second", tag="py3-none-manylinux2014_s390x")
    indexes = {
        "PIP_INDEX_URL": index(tmp_path / "index", one.wheels),
        "PIP_EXTRA_INDEX_URL": index(tmp_path / "additional", others),
    }
    without = {"UV_NO_INDEX": "0", "UV_FIND_LINKS": "", "PIP_NO_INDEX": "0", "PIP_FIND_LINKS": ""}
    constraints = {"HVDTRAIN_CONSTRAINTS": str(tmp_path / "constraints.txt")}
    assert one.install("first", **constraints, **indexes, **without) == (0, "")
    assert one.installed() == {"first", "second"}


def index(folder: Path, wheels: Path) -> str:
    """The address of a package index that has these wheels."""
    for path in wheels.iterdir():
        page = folder / path.name.partition("-")[0] / "index.html"
        page.parent.mkdir(parents=True)
        page.write_text(f'<!DOCTYPE html><html><body><a href="{path.as_uri()}">{path.name}</a></body></html>')
    return folder.as_uri()


def test_packages_are_downloaded_in_place_of_installing_them(tmp_path):
    one = Installer(tmp_path, pinned_uv())
    status, said = one.install("--into", tmp_path / "folder", "first")
    assert (status, one.installed()) == (0, set()), said
    assert {path.name for path in (tmp_path / "folder").iterdir()} == {path.name for path in one.wheels.iterdir()}
    assert one.install("--into", tmp_path / "folder", "first", lock={"first": "0" * 64})[0] != 0


USERS = {
    **{"PIP_TARGET": "/dev/null/t", "PIP_PREFIX": "/dev/null/p", "PIP_USER": "1", "PIP_QUIET": "2", "PIP_DRY_RUN": "1"},
    **{"PIP_ONLY_BINARY": ":none:", "PIP_NO_BINARY": ":all:", "PIP_CONSTRAINT": "/missing", "PIP_REQUIRE_HASHES": "1"},
    **{"UV_SYSTEM_PYTHON": "1", "UV_PYTHON": "3.1", "UV_PROJECT_ENVIRONMENT": "/missing", "UV_NO_BINARY": "1"},
    **{"UV_EXCLUDE_NEWER": "2000-01-01", "UV_REQUIRE_HASHES": "1", "UV_CONSTRAINT": "/missing"},
    **{"UV_NO_BUILD_ISOLATION": "x", "PYTHONHOME": "/missing", "PYTHONWARNINGS": "error", "PYTHONSAFEPATH": "1"},
    **{"PYTHONOPTIMIZE": "2", "CDPATH": "/:/etc", "POSIXLY_CORRECT": "1", "GREP_OPTIONS": "-v"},
    **{"TMPDIR": "/proc/missing", "LC_ALL": "C", "SHELLOPTS": "noclobber"},
    **{"BASH_FUNC_cd%%": "() { echo no; }", "BASH_FUNC_mkdir%%": "() { echo no; }"},
}
FILES = {
    "pip.conf": "[global]\nuser = true\nno-index = true\nfind-links = {links}\nrequire-virtualenv = true\n"
    "[install]\nrequire-hashes = true\ntarget = /dev/null/t\n",
    ".config/uv/uv.toml": 'no-index = true\nfind-links = ["{links}"]\nexclude-newer = "2000-01-01"\n'
    '[pip]\ntarget = "/dev/null/t"\nrequire-hashes = true\nno-binary = [":all:"]\n',
}


@pytest.mark.parametrize("by", ["uv where it can be had", "pip"])
def test_settings_for_the_users_other_work_change_nothing(by, tmp_path):
    one = Installer(tmp_path, "" if by == "pip" else pinned_uv())
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text.format(links=one.environment["PIP_FIND_LINKS"]))
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "UV_NO_INDEX", "UV_FIND_LINKS"):
        one.environment.pop(name, None)  # what the files say of these counts
    files = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "XDG_CONFIG_HOME": ""}
    (tmp_path / "bashrc").write_text("cd /; umask 177; echo of the user\n")
    status, said = one.install("first", **USERS, **files, BASH_ENV=str(tmp_path / "bashrc"))
    assert (status, one.installed()) == (0, {"first", "second"}), said


@pytest.mark.parametrize("by", ["uv where it can be had", "pip"])
def test_the_network_is_blamed_only_where_it_is_the_reason(by, tmp_path):
    one = Installer(tmp_path, "" if by == "pip" else pinned_uv())
    refused = "http://127.0.0.1:9/simple"
    away = {
        "PIP_NO_INDEX": "0",
        "PIP_INDEX_URL": refused,
        "PIP_RETRIES": "1",
        "UV_NO_INDEX": "0",
        "UV_HTTP_RETRIES": "0",
    }
    missing = "no index that is used has what fits: check which index"
    for requirement, variables, expected in (
        ("first==2.0", {}, missing),
        ("third", {}, missing),
        ("third", away, "check the network, and which index"),
        (
            "third",
            {**away, "UV_OFFLINE": "1"},
            "check the network" if by == "pip" else "UV_OFFLINE or uv's configuration",
        ),
    ):
        status, said = one.install(requirement, **variables)
        assert status == 1 and said.splitlines()[-1].startswith(f"set-up: the packages cannot be found; {expected}"), (
            said
        )


@pytest.mark.parametrize(
    "said",
    ["  cause: invalid peer certificate: UnknownIssuer", "SSLError(CERTIFICATE_VERIFY_FAILED): connection broken"],
)
def test_an_unknown_certificate_is_not_called_a_fault_of_the_network(said, tmp_path):
    (tmp_path / "said").write_text(said)
    command = ["bash", "-c", f'source "{SETUP}/uv.sh"; remedy "$1"', "bash", tmp_path / "said"]
    assert subprocess.run(command, capture_output=True, text=True).stdout.startswith("add your company's certificate")


OF_PIP = {
    "global.find-links": "/a /b",
    "global.index-url": "https://mirror/simple",
    "global.extra-index-url": "https://a/simple\nhttps://b/simple",
    "install.cert": "/etc/ca.pem",
    "list.format": "json",
    ":env:.find-links": "/srv/wheels",
    ":env:.no-index": "0",
    ":env:.target": "/elsewhere",
}
UV_TOML = """\
exclude-newer = "2000-01-01"
native-tls = true
[[index]]
name = "mine"
url = "https://c/simple"
[[index]]
url = "https://d/simple"
explicit = true
[pip]
find-links = ["/c,d"]
"""


def test_of_the_settings_of_pip_and_uv_set_up_keeps_where_packages_are(tmp_path):
    (tmp_path / "uv.toml").write_text(UV_TOML)
    environment = {"UV_CONFIG_FILE": str(tmp_path / "uv.toml"), "UV_INDEX_MINE_USERNAME": "me", "UV_NO_BINARY": "1"}
    for_pip = {
        "PIP_CERT=/etc/ca.pem",
        "PIP_CONFIG_FILE=/dev/null",
        "PIP_EXTRA_INDEX_URL=https://a/simple https://b/simple",
        "PIP_FIND_LINKS=/srv/wheels",
        "PIP_INDEX_URL=https://mirror/simple",
        "PIP_NO_INDEX=0",
    }
    for_uv = {
        "SSL_CERT_FILE=/etc/ca.pem",
        "UV_DEFAULT_INDEX=https://mirror/simple",
        "UV_FIND_LINKS=/c%2Cd",
        "UV_INDEX=mine=https://c/simple https://a/simple https://b/simple",
        "UV_INDEX_MINE_USERNAME=me",
        "UV_INDEX_STRATEGY=unsafe-best-match",
        "UV_NATIVE_TLS=true",
        "UV_NO_CONFIG=1",
        "UV_NO_INDEX=0",
    }
    assert set(settings["settings"](OF_PIP, environment)) == for_pip | for_uv


def test_packages_are_fetched_with_the_certificates_of_the_user_else_of_the_system(tmp_path, monkeypatch):
    file = tmp_path / "ca.pem"
    monkeypatch.setitem(settings["certificates"].__globals__, "SYSTEMS", ("/missing", str(file)))
    for exists, configuration, environment, of_pip, of_uv in (
        (False, {}, {}, None, None),
        (True, {}, {}, str(file), str(file)),
        (True, {}, {"REQUESTS_CA_BUNDLE": "/a", "SSL_CERT_FILE": "/b"}, "/a", "/b"),
        (True, {"global.cert": "/c"}, {"CURL_CA_BUNDLE": "/a"}, "/c", "/c"),
    ):
        if exists:
            file.touch()
        found = dict(line.split("=", 1) for line in settings["settings"](configuration, environment))
        assert (found.get("PIP_CERT"), found.get("SSL_CERT_FILE")) == (of_pip, of_uv)


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
    tool = tmp_path / "hvdtrain" / f"audit-{hashlib.sha256(about).hexdigest()[:16]}" / "bin" / "python"
    script(tool, f'echo "$@" >{tmp_path}/words', f'printf "%s\\n" "{printed}"', f"exit {status}")
    (tool.parent.parent / "complete").touch()
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
# As far as a tool's environment asks it: installing takes a while, and is interrupted once.
case "$*" in
    -V) echo Python 3.99 ;;
    '-m venv '*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    *settings.py) echo PIP_CONFIG_FILE=/dev/null ;;
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
    script(tmp_path / "venv" / "bin" / "python", PYTHON, shell="/bin/bash")
    command = ["bash", "-euo", "pipefail", "-c", TOOL, "bash", str(SETUP)]
    environment = {**os.environ, "HOME": str(tmp_path)}
    assert subprocess.run(command, env=environment).returncode != 0
    (tmp_path / "stay").touch()
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    (tool,) = {one.communicate()[0].strip() for one in both}
    assert [one.returncode for one in both] == [0, 0] and Path(tool, "bin", "tool").exists()
    assert (tmp_path / "log").read_text() == "installed\n" * 2, "once after the interruption"
