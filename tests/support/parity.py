"""Comparing the weights of runs: options that keep rounding errors small, and what runs leave."""

from __future__ import annotations

from pathlib import Path

from hvdtrain.networks.description import Weights
from hvdtrain.runs import checkpoints

PLAIN = (
    *("--momentum", "0", "--lr", "0.02", "--schedule", "constant", "--warmup-epochs", "0"),
    *("--max-steps", "16"),
)
EVERY_STEP = ("--checkpoint-every", "1", "--keep", "99")


def after(run_folder: Path, step: int) -> Weights:
    """Weights after that many steps, of a run with EVERY_STEP."""
    return checkpoints.load(run_folder / "checkpoints" / f"step-{step:08d}").weights


def checksums(run_folder: Path, moment: str) -> list[str]:
    """The checksum of parameters that each rank logged, at the `moment` "starts" or "ends"."""
    logs = sorted((run_folder / "logs").glob("rank-*.log"))
    return [log.read_text().split(f"{moment} with parameters ")[1].split()[0] for log in logs]
