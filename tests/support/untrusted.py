"""What tests of untrusted files and callers share."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from hvdtrain.interfaces.learner import Checkpoint, Position
from hvdtrain.networks.random_numbers import initial_weights
from hvdtrain.runs import checkpoints
from support.networks import LENET, LENET_RECORD

PASSWORD = "correct-horse-battery"


class Harm:
    """Unpickling it creates a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def save_checkpoint(folder: Path, keep: int = 1, draft: Path | None = None, own: Any = (), **changes: Any) -> Path:
    """Save a checkpoint that is valid except for these changes."""
    weights = initial_weights(LENET, "xavier", 0)
    folder.parent.mkdir(parents=True, exist_ok=True)
    named = "lenet", LENET_RECORD, "torch", "sgd", "ab", 0.0, tuple("0123456789")
    made = Checkpoint(Position(), *named, weights=weights)
    return checkpoints.save(folder, Checkpoint(**{**vars(made), **changes}), keep, draft, own)


def rewrite(path: Path, name: str, content: bytes) -> None:
    """Other content and a manifest that matches it, as an attacker would write them."""
    (path / name).write_bytes(content)
    (path / checkpoints.MANIFEST).write_text(
        manifest_of({name: (path / name).read_bytes() for name in checkpoints.FILES})
    )


def manifest_of(files: dict[str, bytes]) -> str:
    """A manifest with the checksums and sizes of these files, so that they are not rejected for that."""
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    return json.dumps({"sha256": sums, "bytes": {name: len(data) for name, data in files.items()}})


def changed_state(path: Path, **values: Any) -> bytes:
    """The content of a checkpoint's state.json with other values."""
    return json.dumps({**json.loads((path / "state.json").read_text()), **values}).encode()
