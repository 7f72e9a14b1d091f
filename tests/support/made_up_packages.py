"""An environment of made-up packages, in which checks of the doctor run without importing any."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from hvdtrain.doctor.check import Check, Finding
from hvdtrain.doctor.context import CheckContext
from hvdtrain.system.rank_info import RankInfo
from hvdtrain.system.stacks import DISTRIBUTIONS

BUILT = {"gloo": 1, "mpi": 1, "nccl": 0}
"""What Horovod was built with, as the probe of a framework reports it."""


class Environment:
    """An environment of made-up packages, in which checks run without importing any."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._site, self._monkeypatch = folder, folder / "site", monkeypatch
        self._site.mkdir()
        monkeypatch.setattr(sys, "prefix", str(folder))
        standard_library = [path for path in sys.path if path.startswith(sys.base_prefix) and "-packages" not in path]
        monkeypatch.setattr(sys, "path", [str(self._site), *standard_library])
        for name in (*DISTRIBUTIONS, "horovod", "mpi4py"):  # other tests may have imported them
            monkeypatch.delitem(sys.modules, name, raising=False)
        self.context = CheckContext(RankInfo("none", 0, 1, 0), 1, time.monotonic() + 60)
        self.python("3.11.9")

    def python(self, version: str) -> None:
        """Another Python, as far as its version goes."""
        self._monkeypatch.setattr("platform.python_version", lambda: version)
        self._monkeypatch.setattr(sys, "version_info", tuple(map(int, version.split("."))))

    def marker(self, name: str) -> None:
        (self._folder / ".hvdtrain-stack").write_text(f"{name}\n")

    def write(self, name: str, text: str = "") -> None:
        (self._folder / name).write_text(text)

    def install(self, *packages: str, requires: tuple[str, ...] = (), **files: str) -> None:
        """packages: such as `torch==2.15.0`. files: next to the metadata of each."""
        for name, _, version in (package.partition("==") for package in packages):
            folder = self._site / f"{name.replace('-', '_')}-{version}.dist-info"
            folder.mkdir()
            needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
            for file, text in files.items():
                (folder / f"{file}.json").write_text(text)

    def module(self, name: str, **answer: object) -> None:
        """A module that can be found; what importing it, and Horovod for it, would give."""
        (self._site / name).mkdir()
        (self._site / name / "__init__.py").touch()
        if answer:
            self.context.once(f"framework {name}", lambda: answer)

    def findings(self, check: Check) -> list[Finding]:
        return list(check(self.context))

    def finding(self, check: Check) -> Finding:
        (finding,) = self.findings(check)
        return finding


def horovod_record(**values: object) -> str:
    """The file that set-up adds to Horovod's metadata."""
    return json.dumps({"frameworks": {"torch": "2.15.0"}, "torch_cuda": "13.2", "mpi": "openmpi 4.1.8", **values})
