"""The environment of the tests and of what they start: the user's, without settings and with another home folder."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

SETTINGS = re.compile(
    r"(HVDTRAIN|HOROVOD|SLURM|SBATCH|SALLOC|SRUN|PMI|PMIX|OMPI_COMM|TORCHINDUCTOR|TORCHELASTIC|DMLC)_\w+"
    r"|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|TF_(CONFIG|USE_LEGACY_KERAS)|KERAS_BACKEND"
    r"|XDG_(CONFIG|STATE)_HOME"
    # What is printed would be wrapped and colored as in the terminal of who runs the tests.
    r"|COLUMNS|LINES|(NO|FORCE|PYTHON)_COLORS?|TTY_(COMPATIBLE|INTERACTIVE)"
    # Python has UTF-8 then, whatever the locale; and programs sort and speak as everywhere.
    r"|LC_\w+|LANG(UAGE)?|PYTHON(UTF8|COERCECLOCALE|IOENCODING)"
    # Warnings of libraries would be errors, assertions nothing, and scripts would not find what is next to them.
    r"|PYTHON(WARNINGS|DEVMODE|OPTIMIZE|SAFEPATH|INSPECT|UNBUFFERED)"
    # With it, each start compiles all modules again, which doubles its time.
    r"|PYTHONDONTWRITEBYTECODE"
    # A make that a test starts would take the variables of the one that runs the tests, such as VENV.
    r"|MAKE(FLAGS|OVERRIDES|LEVEL)|MFLAGS"
)
"""Variables that change what training, launchers and frameworks do, also those of an allocation of Slurm."""
OF_TESTS = {"HVDTRAIN_DATA", "HVDTRAIN_RECORD"}
INSTALLED_IN = (".cache", ".config/pip", ".config/uv")
"""Below the user's home folder: what set-up has installed or compiled, and from where it may install packages."""

_of_jobs: dict[str, str] | None = None


def begin() -> Path | None:
    """Take the settings out of this process's environment, give it a new home folder, and keep that for `of_jobs`.

    The folder is returned where it is new: the workers of pytest-xdist share that of the process that starts them.
    """
    global _of_jobs
    for name in [name for name in os.environ if SETTINGS.fullmatch(name) and name not in OF_TESTS]:
        del os.environ[name]
    made = None
    if "PYTEST_XDIST_WORKER" not in os.environ:
        made = Path(tempfile.mkdtemp(prefix="home-of-tests-"))
        fill_home(made, Path.home())
        os.environ["HOME"] = str(made)
    # Trainings in one process have --shards after others without, also in jobs, and MKL reads this variable once.
    os.environ.setdefault("MKL_CBWR", "AUTO")
    _of_jobs = dict(os.environ)
    # Ranks that are threads of this process wait for each other inside of TensorFlow's operations. With one thread for
    # all of them, as training sets where OMP_NUM_THREADS is 1, they would wait forever.
    os.environ["TF_NUM_INTEROP_THREADS"] = "4"
    return made


def fill_home(home: Path, users: Path) -> None:
    """Give a home folder links to those of the user's folders without which tests would install everything again."""
    for name in INSTALLED_IN:
        if (users / name).is_dir():
            (home / name).parent.mkdir(exist_ok=True)
            (home / name).symlink_to(users / name)


def of_jobs(**own: str) -> dict[str, str]:
    """The environment as the tests began, and a test's own variables: nothing that a library has set meanwhile."""
    return {**(os.environ if _of_jobs is None else _of_jobs), **own}


def importing(*folders: Path | str) -> dict[str, str]:
    """The variable with which Python also finds what is in these folders, before all else."""
    return {"PYTHONPATH": os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])}


def script(path: Path, *lines: str, shell: str = "/bin/sh") -> Path:
    """Write an executable shell script, in the place of a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([f"#!{shell}", *lines, ""]))
    path.chmod(0o755)
    return path
