"""What keeps the package easy to read: short files, one name for one thing, imports in one direction."""

import ast
import functools
import graphlib
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import get_args

from support.jobs import ROOT

from hvdtrain.config.options import Framework
from hvdtrain.jobs.own_program import own_program
from hvdtrain.system.stacks import DISTRIBUTIONS, STACKS, Stack

MAX_LINES = 350
FILES = sorted((ROOT / "hvdtrain").rglob("*.py"))


def test_files_are_short():
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in FILES}
    assert {path: count for path, count in lines.items() if count > MAX_LINES} == {}


def test_one_place_offers_a_resume():
    """It knows whether a checkpoint is there; a job that was asked to stop has just written one."""
    offers = [str(path.relative_to(ROOT / "hvdtrain")) for path in FILES if "with --resume {" in path.read_text()]
    assert offers == ["system/run_end.py", "training/ranks.py"]


def test_class_names_are_unique():
    """Two classes of one name are two things in one search, and in the head of the reader."""
    defined = defaultdict(list)
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                defined[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {name: places for name, places in defined.items() if len(places) > 1 and name[0] != "_"} == {}


# Each folder imports only folders before it. It also names files directly in hvdtrain/.
ORDER = [
    "errors",
    "system",
    "networks",
    "config",
    "interfaces",
    "collectives",
    "datasets",
    "tasks",
    "frameworks",
    "runs",
    "training",
    "jobs",
    "doctor",
    "views",
    "measure",
    "api",
    "cli",
    "entry points",
]
ENTRY_POINTS = {"__init__", "__main__", "torch_lenet", "mxnet_lenet", "tensorflow_lenet"}
FRAMEWORK_PACKAGES = {"torch", "mxnet", "tensorflow", "horovod"}
STANDARD_LIBRARY_ONLY = {"errors", "system"}
"""Of which the doctor and the launcher consist; msgspec is imported where a file of a run is read."""
STANDARD_LIBRARY = sys.stdlib_module_names | {"tomli", "tomllib"}
"""Python 3.10 has the package tomli in place of tomllib."""
ONLY_IMPORTS = {"jobs": {"errors", "system"}}
"""Folders that import no other folders than these."""


def folder_of(module):
    """The folder of `hvdtrain.<folder>...` in ORDER; for a file directly in hvdtrain/, its name."""
    name = module.removeprefix("hvdtrain").lstrip(".").partition(".")[0] or "__init__"
    return "entry points" if name in ENTRY_POINTS else name


@functools.cache
def imports_in(path):
    """The statements of a file that import, anywhere in it."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def imports_of(path):
    for node in imports_in(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "hvdtrain":
            yield from (f"hvdtrain.{alias.name}" for alias in node.names if alias.name != "__version__")
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_imports_descend_from_folder_to_folder():
    for path in FILES:
        own = folder_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for module in imports_of(path):
            top = module.partition(".")[0]
            where = f"{path.relative_to(ROOT)} imports {module}"
            if top == "hvdtrain":
                other = folder_of(module)
                assert other == own or module == "hvdtrain" or ORDER.index(other) < ORDER.index(own), where
                assert other == own or other in ONLY_IMPORTS.get(own, {other}), where
            else:
                assert own == "frameworks" or top not in FRAMEWORK_PACKAGES, where
                is_late = (path.name, top) == ("files.py", "msgspec")
                assert own not in STANDARD_LIBRARY_ONLY or top in STANDARD_LIBRARY or is_late, where


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_files_import_each_other_in_a_circle():
    files = {module_name(path): path for path in FILES}
    graph = {}
    for name, path in files.items():
        nodes = [node for node in imports_in(path) if isinstance(node, ast.ImportFrom)]
        # `from package import name` imports a file of that name, if there is one.
        found = [(node.module, f"{node.module}.{alias.name}") for node in nodes for alias in node.names]
        graph[name] = {full if full in files else module for module, full in found} & files.keys()
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


def names_in(module):
    """The names that a module of the package may have: all that it defines, imports or assigns, and its own modules."""
    base = ROOT.joinpath(*module.split("."))
    nodes = list(ast.walk(ast.parse((base / "__init__.py" if base.is_dir() else base.with_suffix(".py")).read_text())))
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assigned = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    imported = {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
    return defined | assigned | imported | {path.stem for path in base.glob("*")}


def test_programs_that_no_test_runs_import_what_is_there():
    """Two benchmarks imported names that were gone, and nobody noticed."""
    programs = [path for folder in ("benchmarks", "docs", "examples") for path in (ROOT / folder).rglob("*.py")]
    missing = {
        f"{path.relative_to(ROOT)} imports {node.module}.{alias.name}"
        for path in programs
        for node in imports_in(path)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "hvdtrain"
        for alias in node.names
        if alias.name not in names_in(node.module)
    }
    assert len(programs) > 50 and missing == set()


def test_agents_and_help_import_neither_numpy_nor_a_framework():
    """A network is imported when it is asked for, msgspec for the messages of agents. It needs a new process."""
    code = "import sys; from hvdtrain.__main__ import main; main(['--help']); assert 'msgspec' not in sys.modules"
    code += "; import hvdtrain.jobs.agent; print(*sys.modules); from hvdtrain import Network; print(Network)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    *_, modules, network = output.splitlines()
    assert not {"torch", "mxnet", "tensorflow", "numpy"} & {*modules.split()}
    assert network == "<class 'hvdtrain.networks.description.Network'>"


def test_frameworks():
    frameworks = set(get_args(Framework))
    assert set(DISTRIBUTIONS) == frameworks
    for framework in frameworks:
        assert own_program(["python", "-m", f"hvdtrain.{framework}_lenet"], "train").framework == framework


def test_stacks_are_those_of_set_up():
    def words(file: Path, name: str) -> tuple[str, ...]:
        return tuple(re.search(rf'^{name}="(.*)"$', file.read_text(), re.M)[1].split())

    files = (ROOT / "setup" / "stacks").glob("*/stack.conf")
    of_setup = [Stack(one.parent.name, words(one, "PYTHONS"), words(one, "FRAMEWORKS")) for one in files]
    assert {one.name: one for one in of_setup} == STACKS
