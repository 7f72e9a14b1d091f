"""Wheels of Horovod: what an environment needs, what a wheel is built for, and which wheel fits.

A wheel's local version names what it is built for, so that its file name alone tells where it fits:

    horovod-0.28.1+hvdtrain.pd41c0a9.torch2.13.mxnet1.9.tf2.15.cpu.openmpi4-cp311-cp311-manylinux_2_35_x86_64.whl

in this order: the corrections in this folder (a hash), the frameworks, CPU or CUDA with or without NCCL, MPI. The whole
description of the environment that it was built in is the file hvdtrain.json next to the wheel's metadata.

usage: python setup/wheels.py describe VERSION PATCH...    the environment's description, as JSON
       python setup/wheels.py label                        the local version for the description on standard input
       python setup/wheels.py take PLACE FOLDER            the wheel of a folder or page that fits the description on
                                                           standard input, downloaded to FOLDER where it is remote
       python setup/wheels.py fits                         status 0 if the installed Horovod fits the description
       python setup/wheels.py search WHEEL TEXT...         status 1 and a line for each file that contains a text
"""

from __future__ import annotations

import contextlib
import hashlib
import html.parser
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlparse
from urllib.request import url2pathname

DISTRIBUTIONS = {"torch": ("torch",), "mxnet": ("mxnet", "mxnet-cu112"), "tensorflow": ("tensorflow-cpu", "tensorflow")}
"""The packages that contain each framework."""
SHORT = {"tensorflow": "tf"}
"""Names of frameworks in a local version, where they differ."""
RECORD = "hvdtrain.json"
LOCAL = re.compile(
    r"hvdtrain\.(?P<patches>p[0-9a-f]+)(?P<frameworks>(?:\.(?:torch|mxnet|tf)\d+\.\w+)+)"
    r"\.(?P<device>cpu|rocm|cuda\d+\.\d+(?:\.nccl)?)\.(?P<mpi>[a-z]+\d*)"
)
OPTIONS = re.compile("HOROVOD_(GPU|CPU_OPERATIONS|CUDA|ROCM|NCCL|WITHOUT|BUILD|CMAKE)")
"""Variables that change what Horovod's build makes."""
FORMAT = 2
"""Raised when set-up builds otherwise from the same source and patches, so that cached wheels are not used again."""
MAX_LISTED = 3
"""Wheels that do not fit, of which an error lists the reasons."""
TIMEOUT_S = 60


def describe(version: str, patches: list[Path]) -> dict[str, object]:
    """What decides the content of a wheel that is built in this environment."""
    content = b"".join(path.read_bytes() for path in patches)
    return {
        "horovod": version,
        # The letter keeps a version number from dropping zeros in front.
        "patches": f"p{hashlib.sha256(content).hexdigest()[:7]}",
        "format": FORMAT,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "frameworks": {name: found for name in DISTRIBUTIONS if (found := _installed(DISTRIBUTIONS[name]))},
        "torch_cuda": _torch_cuda(),
        "device": _device(),
        "mpi": _mpi(_output("mpirun", "--version")),
        "options": {name: _option(os.environ[name]) for name in sorted(os.environ) if OPTIONS.match(name)},
    }


def _installed(names: tuple[str, ...]) -> str:
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def _torch_cuda() -> str:
    """The CUDA version that PyTorch is built for, without importing it; empty where it is built for CPUs."""
    spec = importlib.util.find_spec("torch")
    if not spec or not spec.origin:
        return ""
    try:
        found = re.search(r"^cuda\b[^=\n]*=\s*'([\d.]+)'", Path(spec.origin).with_name("version.py").read_text(), re.M)
    except OSError:
        return ""
    return found[1] if found else ""


def _device() -> str:
    """What Horovod is asked to run its operations on: cpu, rocm, or a CUDA version, with NCCL or without."""
    asked = {os.environ[name] for name in os.environ if re.match("HOROVOD_GPU_[A-Z]+", name)}
    if os.environ.get("HOROVOD_GPU") == "ROCM":
        return "rocm"
    if not asked:
        return "cpu"
    home = os.environ.get("HOROVOD_CUDA_HOME")
    nvcc = _output(f"{home}/bin/nvcc" if home else "nvcc", "--version")
    cuda = _torch_cuda() or "".join(re.findall(r"release (\d+\.\d+)", nvcc)[:1]) or "0.0"
    return f"cuda{_major_minor(cuda)}{'.nccl' * ('NCCL' in asked)}"


def _mpi(text: str) -> str:
    """Kind and version of MPI, of what `mpirun --version` prints."""
    kinds = {"openmpi": r"\(Open ?MPI\) ([\d.]+)", "intelmpi": r"Intel\(R\) MPI.*?Version ([\d.]+)"}
    kinds["mpich"] = r"HYDRA[\s\S]*?Version:\s*([\d.]+)"
    for kind, pattern in kinds.items():
        if found := re.search(pattern, text):
            return f"{kind} {found[1]}"
    return "mpi"


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _option(value: str) -> str:
    """A variable's value. Of folders only a hash: a wheel for other machines holds no path of this one."""
    return f"hash {hashlib.sha256(value.encode()).hexdigest()[:16]}" if "/" in value else value


def _major_minor(version: str) -> str:
    """2.13 of 2.13.0+cpu; of a version before a release also what it precedes it by: 2.10a0, 2.16dev20261101."""
    found = re.match(r"(\d+)\.(\d+)(?:\.\d+)*(?:\.?((?:a|b|rc|dev)\d+))?", version)
    return f"{found[1]}.{found[2]}{found[3] or ''}" if found else version


def label(description: dict) -> str:
    """The local version of a wheel that is built as described."""
    frameworks = [f"{SHORT.get(name, name)}{_major_minor(had)}" for name, had in description["frameworks"].items()]
    kind, _, version = description["mpi"].partition(" ")
    mpi = kind + version.partition(".")[0]
    return ".".join(["hvdtrain", description["patches"], *frameworks, description["device"], mpi])


def needed(description: dict) -> str:
    """A wheel that fits the description, for an error."""
    name = f"horovod-{description['horovod']}+{label(description)}"
    return f"{name} for Python {description['python']} on {description['machine']} with {description['libc']}"


def differences(version: str, description: dict) -> list[str]:
    """Why a Horovod of this version does not fit the description; empty where it does."""
    public, _, local = version.partition("+")
    found = LOCAL.fullmatch(local)
    if not found:
        return ["it was not built by `make wheel`"]
    reasons = []
    if public != description["horovod"]:
        reasons.append(f"it is Horovod {public}, not {description['horovod']}")
    if found["patches"] != description["patches"]:
        reasons.append("it has other corrections than this version of hvdtrain")
    built = dict(re.findall(r"\.([a-z]+)(\d+\.\w+)", found["frameworks"]))
    for name, had in description["frameworks"].items():
        wanted, has = _major_minor(had), built.get(SHORT.get(name, name))
        if has != wanted:
            reasons.append(f"it is built for {name} {has}, not {wanted}" if has else f"it is built without {name}")
    reasons += _device_differences(found["device"], description)
    if found["mpi"] != label(description).rpartition(".")[2]:
        reasons.append(f"it is built for {found['mpi']}, not {description['mpi']}")
    return reasons


def _device_differences(device: str, description: dict) -> list[str]:
    asked = description["device"]
    if device == asked:
        return []
    # Whoever asks for nothing gets a build for GPUs only where PyTorch has the libraries that it needs.
    usable = asked if asked != "cpu" else f"cuda{description['torch_cuda']}"
    same_cuda = device.startswith("cuda") and device.split(".")[0] == usable.split(".")[0]
    if same_cuda and (device.endswith(".nccl") or not asked.endswith(".nccl")):
        return []
    return [f"it is built for {device}, not {asked}"]


def wheel_differences(name: str, description: dict) -> list[str]:
    """Why a wheel of this file name does not fit the description and the Python that runs."""
    from packaging.tags import sys_tags
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        _, version, _, tags = parse_wheel_filename(name)
    except InvalidWheelFilename:
        return ["its name is not that of a wheel"]
    reasons = differences(str(version), description)
    if not tags & frozenset(sys_tags()):
        python, _, system = name.removesuffix(".whl").split("-")[-3:]
        reasons.append(f"it is built for {python} on {system}")
    return reasons


def listed(place: str) -> dict[str, str]:
    """Name and address of each wheel of Horovod in a folder, or on a page of links or a package index."""
    scheme = urlparse(place).scheme
    if scheme in ("http", "https"):
        return _on_page(place)
    path = Path(url2pathname(urlparse(place).path)) if scheme == "file" else Path(place)
    if path.suffix == ".whl":
        return {path.name: str(path)}
    if not path.is_dir():
        sys.exit(
            f"set-up: HOROVOD_WHEELS={place} is not a folder; give one with wheels of Horovod, or a page's address"
        )
    return {one.name: str(one) for one in sorted(path.resolve().glob("horovod-*.whl"))}


class _Links(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _on_page(address: str) -> dict[str, str]:
    wheels, index = {}, ""
    for link in _links(address):
        name = unquote(urlparse(link).path.rstrip("/").rpartition("/")[2])
        if name.startswith("horovod-") and name.endswith(".whl"):
            wheels[name] = link
        elif name == "horovod":
            index = link
    # The top page of a package index links to a page for each package.
    return wheels or (_on_page(index) if index and index != address else {})


def _links(address: str) -> Iterator[str]:
    answer = _get(address)
    links = _Links()
    links.feed(answer.text)
    return (urljoin(answer.url, link) for link in links.found)


def _get(address: str):
    import requests  # knows proxies, certificates and credentials as pip does

    try:
        answer = requests.get(address, timeout=TIMEOUT_S)
        answer.raise_for_status()
    except requests.RequestException as error:
        sys.exit(
            f"set-up: HOROVOD_WHEELS: {_plain(address)} cannot be read ({type(error).__name__}); check the address"
        )
    return answer


def _plain(address: str) -> str:
    """An address without a password."""
    return re.sub(r"//[^/@]*@", "//", address)


def take(place: str, folder: Path, description: dict) -> Path:
    """The wheel that fits best: one for exactly the frameworks and the device that are wanted, where there is one."""
    wheels = listed(place)
    reasons = {name: wheel_differences(name, description) for name in wheels}
    fitting = [name for name in wheels if not reasons[name]]
    if not fitting:
        _nothing_fits(place, reasons, description)
    name = max(fitting, key=lambda name: (f"+{label(description)}-" in name, "cuda" not in name, name))
    address, _, fragment = wheels[name].partition("#")
    path = Path(address)
    if "://" in address:
        path = folder / name
        _download(address, fragment, path)
    _check_record(path)
    return path


def _nothing_fits(place: str, reasons: dict[str, list[str]], description: dict) -> None:
    found = [f"{name} ({', '.join(why)})" for name, why in reasons.items()]
    more = f" and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
    what = f"it has {'; '.join(found[:MAX_LISTED]) or 'none'}{more}, but this environment needs {needed(description)}"
    sys.exit(
        f"set-up: no wheel in HOROVOD_WHEELS={_plain(place)} fits: {what}. Run `make wheel` on a machine with these "
        "versions and add the file from dist/, or unset HOROVOD_WHEELS to build Horovod here."
    )


def _download(address: str, fragment: str, path: Path) -> None:
    content = _get(address).content
    if expected := re.search(r"sha256=([0-9a-f]{64})", fragment):
        found = hashlib.sha256(content).hexdigest()
        if found != expected[1]:
            sys.exit(
                f"set-up: {_plain(urldefrag(address).url)} has SHA-256 {found}, but its page says {expected[1]}: "
                "it was changed or damaged; upload it again"
            )
    path.write_bytes(content)


def _check_record(path: Path) -> None:
    """The name of a file can be changed, so compare it with what the wheel's build wrote into it."""
    try:
        with zipfile.ZipFile(path) as archive:
            inside = next(name for name in archive.namelist() if re.fullmatch(rf"[^/]+\.dist-info/{RECORD}", name))
            version = label(json.loads(archive.read(inside)))
    except (OSError, StopIteration, ValueError, KeyError, zipfile.BadZipFile):
        sys.exit(f"set-up: {path} is not a wheel that `make wheel` built, or it is damaged; copy it again")
    if f"+{version}-" not in path.name:
        sys.exit(
            f"set-up: {path} was renamed: it is built for {version}; give it the name back that `make wheel` gave it"
        )


def fits(description: dict) -> bool:
    """Whether the installed Horovod fits."""
    try:
        return not differences(metadata.version("horovod"), description)
    except metadata.PackageNotFoundError:
        return False


def search(wheel: Path, texts: list[str]) -> list[str]:
    """The files of a wheel that contain one of the texts."""
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    return [f"{name}: {text}" for name in contents for text in texts if text.encode() in contents[name]]


def main(command: str, *arguments: str) -> int:
    """Run one command of the usage, and return the exit status."""
    if command == "describe":
        print(json.dumps(describe(arguments[0], [Path(one) for one in arguments[1:]]), indent=1))
    elif command == "search":
        found = search(Path(arguments[0]), list(arguments[1:]))
        print(*found, sep="\n", end="\n" if found else "")
        return bool(found)
    else:
        description = json.load(sys.stdin)
        if command == "fits":
            return not fits(description)
        print(label(description) if command == "label" else take(arguments[0], Path(arguments[1]), description))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
