"""The program of `make test-machines`, without a machine: what it chooses, does, reports and writes."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys

import pytest
from machines import __main__ as program
from machines import chroots, images, known, narrow_path, table
from machines.machine import Command, Work, environment
from machines.settings import Settings
from support.jobs import ROOT

MACHINES = [machine for group in known.GROUPS for machine in group]
PAGE = ROOT / "docs" / "install.md"


class Made:
    """A machine whose command `bad` fails; it notes what is done."""

    name, about, commands = "made", "made up", {"good": Command("true"), "bad": Command("false", "a bad one")}

    def __init__(self, missing: str = "") -> None:
        self.reason, self.done = missing, []

    def missing(self):
        return self.reason

    def run(self, command, log):
        self.done.append(command.line)
        print(command.line, "said", file=log)
        return int(command.line == "false")

    @contextlib.contextmanager
    def made(self, work):
        try:
            yield self.run
        finally:
            self.done.append("removed")


@pytest.fixture
def work(tmp_path):
    (tmp_path / "logs").mkdir()
    return Work(tmp_path / "work", tmp_path / "logs", settings=None)


def test_a_command_that_fails_is_reported_and_the_others_run(work, capsys):
    machine = Made()
    results = program.try_machine(machine, ["bad", "good"], work)
    assert machine.done == ["false", "true", "removed"]
    assert results == {"bad": "failed, status 1", "good": "passed, 0 s"}
    assert "    false said" in capsys.readouterr().out


def test_a_machine_that_cannot_be_made_is_skipped_or_failed_with_the_reason(work, monkeypatch, capsys):
    assert program.try_machine(Made("needs root"), ["good"], work) == {"good": "skipped: needs root"}
    broken = Made()
    monkeypatch.setattr(broken, "made", lambda work: work.run(["false"]))
    assert program.try_machine(broken, ["good"], work) == {"good": "failed: cannot be made"}
    assert "status 1 of false" in capsys.readouterr().out


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_each_machine_names_what_it_needs(machine, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name, **_: None)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert "git" in machine.missing()
    if isinstance(machine, chroots.Chroot | images.Image):
        monkeypatch.setattr("os.geteuid", lambda: 1000)
        assert machine.missing() == "needs root"


def test_patterns_choose_machines_and_commands():
    machine = Made()
    assert program.chosen(machine, ["made"]) == program.chosen(machine, ["ma*/*"]) == ["good", "bad"]
    assert (program.chosen(machine, ["*/bad"]), program.chosen(machine, ["other"])) == (["bad"], [])
    names = [machine.name for machine in MACHINES]
    assert len(names) == len({*names})


def test_a_pattern_without_a_machine_is_an_error(monkeypatch, capsys):
    """Such as one that the shell has made a path of."""
    monkeypatch.setattr(sys, "argv", ["machines", "--list", "--only", "*/docs", "tests/unit"])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert (ended.value.code, "is called tests/unit: --list shows them" in capsys.readouterr().err) == (2, True)


def test_the_page_keeps_results_of_commands_that_did_not_run_again():
    groups, page = [[Made()]], f"# Title\n{table.BEGIN}{table.END}\nend\n"
    page = table.written(page, groups, {("made", "bad"): "failed, status 1"})
    assert page.splitlines()[2:] == [
        "| machine | | `true` | a bad one |",
        "| --- | --- | --- | --- |",
        "| `made` | made up | not run | failed, status 1 |",
        table.END,
        "end",
    ]
    page = table.written(page, groups, {("made", "good"): "passed, 3 s"})
    assert "| `made` | made up | passed, 3 s | failed, status 1 |" in page


def test_the_page_has_each_machine_and_command():
    page = PAGE.read_text()
    assert table.written(page, known.GROUPS, {}) == page, "run: make test-machines ARGS='--only --write'"


def test_what_settings_name_is_found_on_the_machine(tmp_path):
    """Wherever it lies here; an index in a folder with the files that its pages link to."""
    home, authority, index = tmp_path / "home", tmp_path / "ca.crt", tmp_path / "index"
    for folder in (home / ".config" / "pip", index / "simple", index / "files"):
        folder.mkdir(parents=True)
    authority.touch()
    (home / ".config" / "pip" / "pip.conf").write_text(f"[global]\nindex-url = file://{index}/simple\ntimeout = 1\n")
    own = tmp_path / "own.conf"
    own.write_text("[global]\ntimeout = 2\n")
    settings = Settings(
        {"PIP_CERT": str(authority), "SSL_CERT_FILE": str(authority), "https_proxy": "http://proxy:1", "OTHER": "1",
         "PIP_CONFIG_FILE": str(own), "PIP_TARGET": str(tmp_path)},
        home,
    )  # fmt: skip
    places = {str(source): str(place) for source, place in settings.mounts.items()}
    assert {"SSL_CERT_FILE": places[str(authority)], "https_proxy": "http://proxy:1"} == settings.variables
    lines = settings.pip.splitlines()
    assert {f"index-url = file://{places[str(index)]}/simple", f"cert = {places[str(authority)]}", "timeout = 2"} <= {
        *lines
    }
    assert str(tmp_path) not in settings.pip


def test_an_ordinary_user_gets_what_set_up_names(work, monkeypatch):
    """A command runs again as long as it names further packages; as root, set-up installs them."""
    entered, said = [], ["sudo apt-get install g++ patch", "sudo apt-get install python3", "ready"]

    def enter(self, root, work, user, line, log):
        entered.append((user, line.partition("install -y")[2] or line))
        if user == "user" and not line.startswith("useradd"):
            print(said.pop(0), file=log, flush=True)
            return len(said)
        return 0

    monkeypatch.setattr(chroots.Chroot, "missing", lambda _: "")  # nothing of it is used here
    monkeypatch.setattr(chroots.Chroot, "_enter", enter)
    monkeypatch.setattr(chroots.Chroot, "_prepare", lambda *_: None)
    monkeypatch.setattr(chroots, "debootstrapped", lambda *_: work.logs)
    work.folder.mkdir()
    machine = chroots.Chroot("fresh", "", "bookworm", {"train": Command("make train")}, "user")
    assert program.try_machine(machine, ["train"], work)["train"].startswith("passed")
    packages = [line for user, line in entered if user == "root"]
    assert [line.split()[-2:] for line in packages] == [["g++", "patch"], ["--no-install-recommends", "python3"]]
    assert [line for user, line in entered if user == "user"] == ["cd ~/hvdtrain && make train"] * 3


def test_a_path_without_some_programs(tmp_path, monkeypatch):
    """What comes first on PATH is linked, as it is there."""
    for folder, names in {"first": ("ssh", "make"), "second": ("make", "ps", "ls")}.items():
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'first'}:{tmp_path / 'missing'}:{tmp_path / 'second'}")
    (tmp_path / "links").mkdir()
    narrow_path.link_programs(tmp_path / "links", ("ssh", "ps"))
    links = {link.name: link.resolve().parent.name for link in (tmp_path / "links").iterdir()}
    assert links == {"make": "first", "ls": "second"}


def test_commands_do_not_see_the_make_that_runs_them(tmp_path):
    """Its ARGS would be theirs."""
    (tmp_path / "Makefile").write_text("all:\n\t@$(MAKE) -s inner\ninner:\n\t@echo given $(ARGS)\n\t@$(RUN)\n")
    code = "import subprocess; from machines.machine import environment; "
    code += "subprocess.run(['make', '-s', 'inner', 'RUN='], env=environment())"
    run = f'RUN=PYTHONPATH={ROOT / "tests"} {sys.executable} -c "{code}"'
    said = subprocess.run(["make", "-s", "ARGS=outer", run, "inner"], cwd=tmp_path, capture_output=True, text=True)
    assert said.stdout.splitlines() == ["given outer", "given"], said.stderr
    assert environment(ARGS="own")["ARGS"] == "own"


def test_the_program_needs_no_other_package():
    """It runs without set-up."""
    command = [sys.executable, "-I", "-S", "-c", "import sys; sys.path.insert(0, 'tests'); import machines.__main__"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
