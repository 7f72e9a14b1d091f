"""Set-up takes a prebuilt wheel of Horovod only where it fits, and links the PyTorch of another Python unchanged.

Processes: horovod.sh is a shell script.
"""

from __future__ import annotations

import functools
import hashlib
import http.server
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.tags import sys_tags
from support.environment import script
from support.jobs import ROOT

from hvdtrain.doctor.checks.horovod import RECORD
from hvdtrain.system.stacks import DISTRIBUTIONS

SCRIPT = ROOT / "setup" / "wheels.py"


def load(name):
    """A file of set-up, under the name by which others there import it."""
    spec = importlib.util.spec_from_file_location(name, SCRIPT.with_name(f"{name}.py"))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


built_for = load("wheel_description")
wheels = load("wheels")
system_torch = load("system_torch")

TAG = next(str(tag) for tag in sys_tags() if "manylinux" in str(tag))
HERE = {
    "horovod": "0.28.1",
    "patches": "p0a1b2c3",
    "python": "3.11",
    "machine": "x86_64",
    "libc": "glibc 2.36",
    "frameworks": {"torch": "2.13.0+cpu", "tensorflow": "2.15.1"},
    "torch_cuda": "",
    "device": "cpu",
    "mpi": "openmpi 4.1.8",
    "options": {},
}
FITS = "hvdtrain.p0a1b2c3.torch2.13.tf2.15.cpu.openmpi4"


def name_of(local=FITS, tag=TAG, public="0.28.1"):
    return f"horovod-{public}+{local}-{tag}.whl"


def build(folder, name=None, **description):
    """A wheel with nothing but its record."""
    folder.mkdir(exist_ok=True)
    built = {**HERE, **description}
    path = folder / (name or name_of(built_for.label(built)))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"horovod-0.28.1+{built_for.label(built)}.dist-info/hvdtrain.json", json.dumps(built))
    return path


def take(place, folder, description=HERE):
    """The path of the wheel that set-up takes, or its error."""
    try:
        return str(wheels.take(str(place), folder, description))
    except SystemExit as error:
        return str(error)


@pytest.mark.parametrize(
    ("description", "name"),
    [
        ({}, FITS),
        (
            {"frameworks": {"torch": "2.10.0a0+b4e4ee81d3.nv25.12"}, "device": "cuda13.0.nccl", "mpi": "mpich 4.2.1"},
            "hvdtrain.p0a1b2c3.torch2.10a0.cuda13.0.nccl.mpich4",
        ),
    ],
)
def test_the_name_says_what_a_wheel_is_built_for(description, name):
    assert built_for.label({**HERE, **description}) == name
    assert built_for.differences(f"0.28.1+{name}", {**HERE, **description}) == []


@pytest.mark.parametrize(
    ("name", "description", "reason"),
    [
        (name_of(FITS.replace("torch2.13", "torch2.14")), {}, "it is built for torch 2.14, not 2.13"),
        (name_of(FITS.replace(".tf2.15", "")), {}, "it is built without tensorflow"),
        (name_of(FITS.replace("p0a1b2c3", "p1111111")), {}, "it has other corrections than this version of hvdtrain"),
        (name_of(FITS.replace("openmpi4", "openmpi5")), {}, "it is built for openmpi5, not openmpi 4.1.8"),
        (name_of(FITS.replace("cpu", "cuda13.0.nccl")), {}, "it is built for cuda13.0.nccl, not cpu"),
        (name_of("cpu"), {}, "it was not built by `make wheel`"),
        (name_of(tag="cp39-cp39-manylinux_2_17_x86_64"), {}, "it is built for cp39 on manylinux_2_17_x86_64"),
        (name_of(tag=TAG.replace(TAG.rpartition("-")[2], "manylinux_9_9_x86_64")), {}, "on manylinux_9_9_x86_64"),
        (name_of(public="0.29.0"), {}, "it is Horovod 0.29.0, not 0.28.1"),
        ("horovod-0.28.1.whl", {}, "its name is not that of a wheel"),
        (name_of(FITS.replace("cpu", "cuda13.0")), {"torch_cuda": "12.9"}, "it is built for cuda13.0, not "),
        (name_of(), {"device": "cuda12.8.nccl"}, "it is built for cpu, not "),
    ],
)
def test_a_wheel_for_another_environment_does_not_fit(name, description, reason):
    assert reason in built_for.wheel_differences(name, {**HERE, **description})[-1]


def test_without_a_wheel_that_fits_one_line_says_why_not_and_what_to_do(tmp_path):
    (tmp_path / name_of(FITS.replace("torch2.13", "torch2.14"))).touch()
    error = take(tmp_path, tmp_path)
    assert error.startswith("set-up: no wheel in HOROVOD_WHEELS=") and "\n" not in error
    assert "(it is built for torch 2.14, not 2.13)" in error
    assert f"needs horovod-0.28.1+{FITS} for Python 3.11" in error
    assert "Run `make wheel`" in error and "unset HOROVOD_WHEELS" in error


@pytest.mark.parametrize(
    ("device", "description"),
    [
        ("cuda13.0.nccl", {"torch_cuda": "13.1"}),
        ("cuda12.8.nccl", {"device": "cuda12.8.nccl", "torch_cuda": "12.8"}),
        ("cuda12.9.nccl", {"device": "cuda12.8"}),
    ],
)
def test_a_wheel_for_gpus_fits_where_its_cuda_is(device, description):
    assert not built_for.differences(f"0.28.1+{FITS.replace('cpu', device)}", {**HERE, **description})


def test_of_several_wheels_the_closest_is_taken(tmp_path):
    larger = build(tmp_path, frameworks={**HERE["frameworks"], "mxnet": "1.9.1"})
    exact = build(tmp_path)
    build(tmp_path, device="cuda13.0.nccl")
    (tmp_path / "torch-2.13.0-py3-none-any.whl").touch()
    assert take(tmp_path, tmp_path, {**HERE, "torch_cuda": "13.0"}) == str(exact)
    exact.unlink()
    assert take(tmp_path.as_uri(), tmp_path) == str(larger)


def test_a_wheel_that_was_renamed_or_damaged_is_not_installed(tmp_path):
    renamed = build(tmp_path, name_of(), frameworks={"torch": "2.12.0", "tensorflow": "2.15.1"})
    error = take(tmp_path, tmp_path)
    assert "was renamed: it is built for" in error and "torch2.12" in error
    renamed.write_bytes(renamed.read_bytes()[:100])
    assert "is not a wheel that `make wheel` built, or it is damaged" in take(tmp_path, tmp_path)
    renamed.unlink()
    assert "it has none, but this environment needs" in take(tmp_path, tmp_path)
    assert "is not a folder" in take(tmp_path / "none", tmp_path)


def test_the_command_prints_the_wheel_or_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(HERE)))
    built = build(tmp_path)
    assert (wheels.main("take", str(tmp_path), str(tmp_path)), capsys.readouterr().out) == (0, f"{built}\n")


@pytest.fixture
def server(tmp_path):
    """Serves the folder `www`."""
    root = tmp_path / "www"
    root.mkdir()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield root, f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_wheels_are_taken_from_a_page_and_from_an_index(tmp_path, server, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    root, address = server
    built = build(root / "files")
    # Python's server lists a folder, as many web servers do; the name's plus sign is escaped.
    assert take(f"{address}/files/", tmp_path) == str(tmp_path / built.name)
    assert (tmp_path / built.name).read_bytes() == built.read_bytes()

    (root / "simple" / "horovod").mkdir(parents=True)
    page = root / "simple" / "horovod" / "index.html"
    digest = hashlib.sha256(built.read_bytes()).hexdigest()
    link = f'<a href="../../files/{built.name.replace("+", "%2B")}#sha256='
    (root / "simple" / "index.html").write_text('<a href="numpy/">numpy</a> <a href="horovod/">horovod</a>')
    page.write_text(f'{link}{digest}">wheel</a>')
    assert take(f"{address}/simple/", tmp_path) == str(tmp_path / built.name)

    page.write_text(f'{link}{"0" * 64}">wheel</a>')
    assert f"has SHA-256 {digest}, but its page says" in take(f"{address}/simple/horovod/", tmp_path)

    error = take(f"{address.replace('//', '//me:secret@')}/missing/", tmp_path)
    assert "cannot be read (HTTPError)" in error and "secret" not in error


def test_facts_that_files_of_set_up_repeat_agree():
    """Set-up runs before hvdtrain is installed, and shell scripts cannot import."""
    assert built_for.DISTRIBUTIONS == DISTRIBUTIONS
    assert f"'^{built_for.OPTIONS.pattern}'" in (ROOT / "setup" / "environment.sh").read_text()
    assert wheels.RECORD == RECORD and f"/{RECORD}" in (ROOT / "setup" / "horovod.sh").read_text()


def test_paths_of_the_build_machine_are_found_in_a_wheel(tmp_path, capsys):
    path = tmp_path / "a.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("horovod/mpi_lib.so", b"\0/home/me/horovod-build.x/pair.cc\0")
        archive.writestr("horovod/__init__.py", "")
    assert wheels.main("search", str(path), "/home/me/", "/opt/x/") == 1
    assert capsys.readouterr().out == "horovod/mpi_lib.so: /home/me/\n"
    assert wheels.main("search", str(path), "/opt/x/") == 0


def test_the_environment_is_described_without_its_folders(monkeypatch):
    monkeypatch.setenv("HOROVOD_CUDA_HOME", "/opt/private/cuda")
    monkeypatch.setenv("HOROVOD_CPU_OPERATIONS", "gloo")
    description = built_for.describe("0.28.1", ROOT / "setup" / "horovod")
    assert "/opt/private" not in json.dumps(description)
    assert description["options"]["HOROVOD_CPU_OPERATIONS"] == "gloo"
    assert description["frameworks"] and built_for.LOCAL.fullmatch(built_for.label(description))


@pytest.mark.parametrize(
    ("printed", "mpi"),
    [
        ("mpirun (Open MPI) 4.1.8\n\nReport bugs to", "openmpi 4.1.8"),
        ("HYDRA build details:\n    Version:                                 4.2.1\n", "mpich 4.2.1"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005", "intelmpi 2021.11"),
        ("", "mpi"),
    ],
)
def test_the_kind_of_mpi_is_read_from_its_launcher(printed, mpi):
    assert built_for._mpi(printed) == mpi


PYTHON = """\
# As far as setup/horovod.sh asks it; the wheel that it installs cannot be imported.
case "$*" in
    *settings.py) echo PIP_CONFIG_FILE=/dev/null ;;
    *describe* | *' label') echo '{}' ;;
    *' fits') [[ ! -e $HOME/changed ]] ;;
    *' take '*) echo "$HOME/horovod.whl" ;;
    *'-m pip install'*) touch "$HOME/replaced" ;;
    *'-m pip download'*) echo "/x.h:1:2: error: unknown type"; seq 50; exit 1 ;;
    *'import horovod'*) exit 1 ;;
esac
"""


def test_a_horovod_that_cannot_be_imported_does_not_count_as_the_one_that_it_replaced(tmp_path):
    setup, venv = tmp_path / "setup", tmp_path / "venv"
    shutil.copytree(ROOT / "setup", setup)
    script(setup / "install.sh", '[ "$2" != --file ] || touch "$HOME/replaced"')
    for name in ("python", "horovodrun"):
        script(venv / "bin" / name, PYTHON, shell="/bin/bash")
    (venv / ".hvdtrain-horovod").write_text("prebuilt\n")
    environment = {**os.environ, "HOME": str(tmp_path), "HOROVOD_WHEELS": "/wheels", "XDG_CACHE_HOME": str(tmp_path)}
    run = functools.partial(subprocess.run, [setup / "horovod.sh", venv], env=environment, capture_output=True)
    assert run().returncode == 0 and not (tmp_path / "replaced").exists()
    (tmp_path / "changed").touch()
    assert run().returncode == 1 and (tmp_path / "replaced").exists()
    (tmp_path / "changed").unlink()
    assert run().returncode == 1, "the environment asks for the first one again, which is not there"

    # What ends the build of another one may be far above its last lines.
    (tmp_path / "changed").touch()
    del environment["HOROVOD_WHEELS"]
    script(venv / "bin" / "mpicxx")
    said = run().stderr.decode()
    assert "\n50\n" in said and "\n1\n" not in said and "/x.h:1:2: error: unknown type\n" in said
    assert "set-up: building Horovod failed; the full log is" in said


def add_package(site: Path, name: str, *requires: str, lists_files: bool = True) -> None:
    module = name.replace("-", "_")
    (site / module).mkdir(parents=True)
    (site / module / "__init__.py").write_text(f"name = {name!r}\n")
    about = site / f"{module}-1.0.dist-info"
    about.mkdir()
    lines = [f"Name: {name}", "Version: 1.0", *(f"Requires-Dist: {line}" for line in requires)]
    (about / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]))
    (about / "INSTALLER").write_text("pip\n")
    if lists_files:
        (about / "RECORD").write_text(f"{module}/__init__.py,,\n{about.name}/METADATA,,\n../../bin/{name},,\n")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A Python's packages: PyTorch, what it requires, and others."""
    site = tmp_path / "site-packages"
    add_package(site, "torch", "sympy>=1", "cuda-parts[blas]; python_version > '3'", "opt; extra == 'o'", "numpy<2")
    add_package(site, "sympy", "mpmath", lists_files=False)
    for name in ("mpmath", "blas", "opt", "numpy", "other"):
        add_package(site, name)
    add_package(site, "cuda-parts", "blas; extra == 'blas'", "fft; extra == 'fft'")
    return site


def find(site: Path):
    return {system_torch.normal(item.metadata["Name"]): item for item in distributions(path=[str(site)])}


def test_pytorch_comes_with_all_that_it_requires_and_nothing_else(site):
    closure, requirements = system_torch.required(find(site), "torch")
    assert set(closure) == {"torch", "sympy", "mpmath", "cuda-parts", "blas", "numpy"}
    assert "numpy<2" in map(str, requirements)
    assert "numpy" in system_torch.OWN  # pinned, unless PyTorch requires another version


def test_linked_packages_can_be_imported_but_not_removed(site, tmp_path):
    folder = tmp_path / "links"
    folder.mkdir()
    before = {path: path.stat().st_mtime_ns for path in site.rglob("*")}
    for name in ("torch", "sympy"):
        system_torch.link(find(site)[name], folder)
    assert {path.name.removesuffix("-1.0.dist-info") for path in folder.iterdir()} == {"torch", "sympy"}
    assert (folder / "torch").resolve() == site / "torch"
    linked = find(folder)
    assert linked["torch"].version == "1.0"
    # pip removes the files that a package lists, and fails without a list.
    assert linked["torch"].files is None and linked["sympy"].files is None
    assert before == {path: path.stat().st_mtime_ns for path in site.rglob("*")}
