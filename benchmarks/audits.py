"""What audits find (`--audit`), against what docs/same-bits.md predicts; whether they are ever wrong; what they cost.

    python benchmarks/audits.py flips [--trials 10000]        # bits flipped in gradients, activations and weights
    python benchmarks/audits.py sound [--steps 100000]        # audits of a job without faults: any that is unequal?
    python benchmarks/audits.py cost [--repeats 3]            # LeNet with and without audits

`flips` trains in the threads of one process, with hvdtrain's learner for PyTorch. A single flip damages a shard of a
rank in one step. A persistent one damages all that a rank computes from a step on, until an audit finds it; a weight is
damaged once, and stays so in memory. Flips are at random places, from the lowest bit of a float32 to its sign. `sound`
and `cost` start jobs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.networks import shaped
from support.rank_threads import ThreadGroup, on_all_ranks

from hvdtrain.collectives.audits import AuditVerdict, ShardHashes, ShardsDiffer, choose, judge
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.datasets import sharding
from hvdtrain.frameworks.registry import find_strategy, on_group
from hvdtrain.frameworks.torch.learner import TorchLearner
from hvdtrain.interfaces.combining import Combiner, Gradients
from hvdtrain.interfaces.reading import Audit, Batch
from hvdtrain.networks.description import Network
from hvdtrain.networks.layers import CLASSES, BatchNorm, Dense, Flatten, Relu
from hvdtrain.runs import metrics
from hvdtrain.tasks.target import NetworkTarget

RANKS, SHARDS, EVERY = 4, 4, 2
ROWS = 16
"""Of a global batch."""
KINDS = ("gradient", "activation", "weight")
IMAGES = np.random.default_rng(0).random((64, 1, 4, 4), np.float32), np.random.default_rng(1).integers(0, 10, 64)
NETWORK = NetworkTarget(shaped(Network((Flatten(), Dense(8), BatchNorm(), Relu(), Dense(CLASSES))), (1, 4, 4)))
CONFIG = Config(strategy="single", lr=0.05, shards=SHARDS, on_nan="skip", batch_size=ROWS)
BEFORE = 50
"""Steps before the first fault."""
WINDOW = 40
"""Steps after which a persistent fault counts as not found."""


class Fault(NamedTuple):
    """A bit that is wrong on a rank."""

    kind: str
    rank: int
    place: float
    """Which element, as a part of all."""
    bit: int
    part: int = -1
    """The shard that it damages; -1 for all from the first step on."""


class FaultyLearner(TorchLearner):
    """A learner with a fault."""

    fault: Fault | None = None

    def __init__(self, group: ThreadGroup) -> None:
        strategy = on_group(find_strategy(CONFIG), CONFIG, RuntimeOptions(device="cpu"), group)
        super().__init__(NETWORK, NETWORK.initial_weights(CONFIG), strategy)
        self._active = ""
        assert self._combiner
        self._damage_gradients(self._combiner)
        layers = [module for module in self._model.modules() if isinstance(module, nn.Linear)]
        for number, layer in enumerate(layers):
            layer.register_forward_hook(lambda _, inputs, outputs, number=number: self._damaged(number, outputs))
        self._layers = len(layers)

    def begin(self, fault: Fault | None) -> None:
        """Start again from the state that is remembered, with a fault."""
        self.fault = fault if fault and fault.rank == self.group.rank else None
        self.load(self._weights)
        self.load_optimizer_state(self._state)
        if self.fault and self.fault.kind == "weight" and self.fault.part < 0:
            self._flip_weight()

    def remember(self) -> None:
        """Begin with the present state from now on."""
        state = self.optimizer_state()
        self._weights = {name: array.copy() for name, array in self.weights().items()}
        self._state = state._replace(arrays={name: array.copy() for name, array in state.arrays.items()})

    def _forward_backward(self, batch: Batch) -> Any:
        fault = self.fault
        self._active = fault.kind if fault and fault.part in (-1, batch.part) else ""
        if not (fault and self._active == "weight" and fault.part >= 0):
            return super()._forward_backward(batch)
        self._flip_weight()
        loss = super()._forward_backward(batch)
        self._flip_weight()
        return loss

    def _flip_weight(self) -> None:
        """Flip the bit of a weight in memory, which PyTorch does not notice; again, and it is as before."""
        assert self.fault
        weights = list(self._parameters.values())[int(self.fault.place * len(self._parameters))].detach().numpy()
        weights[:] = flipped(weights, self.fault)

    def _damaged(self, layer: int, outputs: torch.Tensor) -> torch.Tensor:
        fault = self.fault
        if not fault or self._active != "activation" or layer != int(fault.place * self._layers):
            return outputs
        difference = torch.from_numpy(flipped(outputs.detach().numpy(), fault)) - outputs.detach()
        return outputs + difference

    def _damage_gradients(self, combiner: Combiner) -> None:
        add = combiner.add

        def add_damaged(gradients: Gradients) -> None:
            if self.fault and self._active == "gradient":
                arrays = [*gradients.arrays]
                number = int(self.fault.place * len(arrays))
                arrays[number] = flipped(arrays[number], self.fault)
                gradients = gradients._replace(arrays=arrays)
            add(gradients)

        combiner.add = add_damaged  # type: ignore[method-assign]


def flipped(array: np.ndarray, fault: Fault) -> np.ndarray:
    """The array with one bit of one element changed."""
    copy = np.ascontiguousarray(array).copy()
    copy.reshape(-1).view(np.uint32)[int(fault.place * 7919 * copy.size) % copy.size] ^= np.uint32(1 << fault.bit)
    return copy


def step_of(step: int, rank: int) -> Batch:
    """A rank's batch of a step, as `training.batches` makes it."""
    cut = sharding.Cut.of(rank, RANKS, SHARDS)
    rows = sharding.order(0, step, len(IMAGES[0]))[:ROWS]
    by_rank = sharding.Assignment.contiguous(RANKS, SHARDS).by_rank
    audit = choose(0, step, by_rank, range(SHARDS)) if (step + 1) % EVERY == 0 else None
    checked = [audit.shard] if audit and audit.by == rank else []
    return batch_of(step, rows, [*cut.numbers, *checked], audit, checked)


def batch_of(step: int, rows: np.ndarray, numbers: list[int], audit: Audit | None, checked: list[int]) -> Batch:
    """The batch of a step with these shards of which some are only compared."""
    slices = sharding.slices_of_step(rows, 0, ROWS, "exact", sharding.Cut(SHARDS, tuple(numbers)))
    shards = [
        Batch(tuple(array[part.rows] for array in IMAGES), part.weights, 0.05, step, part.rows, number)
        for number, part in zip(numbers, slices, strict=True)
    ]
    shards = [shard._replace(is_witness=shard.part in checked) for shard in shards]
    by_rank = sharding.Assignment.contiguous(RANKS, SHARDS).by_rank if not (audit and audit.only) else ()
    nothing = (), np.zeros(0, np.float32), 0.05, step, np.zeros(0, np.int64)
    return Batch(*nothing, shards=tuple(shards), by_rank=by_rank, audit=audit)


class Found(NamedTuple):
    """What happened to a fault."""

    audited: bool
    """Whether an audit compared a shard that it damaged."""
    steps: int = 0
    """Steps until an audit found it; 0 if none did."""
    verdict: AuditVerdict = AuditVerdict(None)


def try_fault(learner: FaultyLearner, fault: Fault, first: int) -> Found:
    """Train from step `first` on with a fault; call it on every rank."""
    learner.begin(fault)
    audited = False
    for step in range(first, first + (1 if fault.part >= 0 else WINDOW)):
        batch = step_of(step, learner.group.rank)
        audited |= is_audited(step, fault)
        try:
            learner.train_step(batch)
        except ShardsDiffer as difference:
            if fault.part >= 0:
                learner.fault = None  # it does not repeat itself
            return Found(audited, step - first + 1, judge(difference.hashes, compute_again(learner, step, difference)))
    return Found(audited)


def is_audited(step: int, fault: Fault) -> bool:
    """Whether the audit of a step compares a shard that the fault damages."""
    batch = step_of(step, fault.rank)
    damaged = [shard.part for shard in batch.shards or () if fault.part in (-1, shard.part)]
    return bool(batch.audit and batch.audit.shard in damaged)


def compute_again(learner: FaultyLearner, step: int, difference: ShardsDiffer) -> list[int]:
    """The hashes of the shard on all ranks, as `training.audit` gets them."""
    rows = sharding.order(0, step, len(IMAGES[0]))[:ROWS]
    audit = Audit(difference.shard, difference.by, only=True)
    try:
        learner.train_step(batch_of(step, rows, [audit.shard], audit, [audit.shard]))
    except ShardHashes as hashes:
        return hashes.by_rank
    raise AssertionError("an update")


def faults(kind: str, trials: int, persistent: bool) -> list[tuple[Fault, int]]:
    """Faults at random, and the steps at which they begin."""
    draw = np.random.default_rng([KINDS.index(kind), persistent])
    made = []
    for _ in range(trials):
        rank, step = int(draw.integers(RANKS)), int(draw.integers(100_000))
        own = sharding.Cut.of(rank, RANKS, SHARDS).numbers
        part = -1 if persistent else int(draw.choice(own))
        made.append((Fault(kind, rank, float(draw.random()), int(draw.integers(32)), part), step))
    return made


def run_flips(trials: int, kinds: list[str]) -> None:
    """Print how many faults were found, and how many should be."""
    plan = [
        (kind, persistent, faults(kind, trials // (2 * len(kinds)), persistent))
        for kind in kinds
        for persistent in (False, True)
    ]

    def of_rank(group: ThreadGroup) -> list[list[Found]]:
        torch.set_num_threads(1)
        learner = FaultyLearner(group)
        for step in range(BEFORE):
            learner.train_step(step_of(step, group.rank))
        learner.remember()
        return [[try_fault(learner, fault, step) for fault, step in made] for _, _, made in plan]

    results = on_all_ranks(RANKS, of_rank)
    assert all(of_rank == results[0] for of_rank in results), "the ranks disagree"
    print(f"{RANKS} ranks, {SHARDS} shards, an audit every {EVERY} steps")
    for (kind, persistent, made), found in zip(plan, results[0], strict=True):
        (print_persistent if persistent else print_single)(kind, made, found)


def print_single(kind: str, made: list[tuple[Fault, int]], found: list[Found]) -> None:
    compared = sum(one.audited for one in found)
    seen = [(one, fault) for one, (fault, _) in zip(found, made, strict=True) if one.steps]
    right = sum(one.verdict == AuditVerdict(fault.rank, False) for one, fault in seen)
    rate = 1 / (SHARDS * EVERY)
    error = (rate * (1 - rate) / len(made)) ** 0.5
    print(
        f"single, {kind}: {len(made)} flips; {compared / len(made):.4f} of them in an audited shard (predicted "
        f"{rate:.4f}, standard error {error:.4f}); {len(seen)} of {compared} changed its bits, all found; "
        f"{right} of {len(seen)} blamed on the right rank and called transient"
    )


def print_persistent(kind: str, made: list[tuple[Fault, int]], found: list[Found]) -> None:
    acting = [one for one in found if one.steps or not one.audited]
    masked = len(found) - len(acting)
    seen = [(one, fault) for one, (fault, _) in zip(found, made, strict=True) if one.steps]
    right = sum(one.verdict.wrong == fault.rank for one, fault in seen)
    print(f"persistent, {kind}: {len(made)} faults, of which {masked} changed no bits of an audited shard;")
    for steps in (2, 4, 8, 16, WINDOW):
        share = sum(0 < one.steps <= steps for one in acting) / len(acting)
        predicted = 1 - (1 - 2 / RANKS) ** (steps // EVERY)
        error = max(predicted * (1 - predicted) / len(acting), 0) ** 0.5
        print(f"    within {steps} steps {share:.4f} (predicted {predicted:.4f}, standard error {error:.4f})")
    verdicts = Counter(one.verdict.was_wrong_again for one, _ in seen)
    print(f"    {right} of {len(seen)} blamed on the right rank; wrong again at the second try: {verdicts[True]}")


SMALL = """
import numpy as np
from torch import nn


class Small:
    def data(self):
        draw = np.random.default_rng(0)
        rows = draw.normal(size=(4096, 8)).astype(np.float32)
        return (rows, (rows[:, 0] * rows[:, 1] > 0).astype(np.int64)), (rows[:256], rows[:256, 0].astype(np.int64) * 0)

    def model(self):
        return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 2))
"""


def job(folder: Path, ranks: int, *options: str) -> list[dict[str, Any]]:
    """Train with the ring; returns the records."""
    command = [sys.executable, "-m", "hvdtrain", "launch", "local", "-n", str(ranks), "--", sys.executable, "-m"]
    command += ["hvdtrain", "train", "--strategy", "ring", "--device", "cpu", "--name", "run", "--quiet", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    return list(metrics.read(folder / "runs" / "run" / "metrics.jsonl"))


def run_sound(steps: int, seed: int) -> None:
    """Print how many audits of a sound job were unequal."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "small.py").write_text(SMALL)
        options = ("--model", "small.py:Small", "--shards", "2", "--audit", "1", "--batch-size", "64")
        options += ("--seed", str(seed))
        limits = ("--epochs", str(-(-steps // 64)), "--max-steps", str(steps), "--log-every", "1000")
        records = job(folder, 2, *options, *limits, "--checkpoint-every", "0s", "--keep", "1")
    last = [record for record in records if record["kind"] == "audited"][-1]
    print(f"{last['audits']} audits of a sound job of 2 ranks, {last['unequal']} unequal")


def run_cost(repeats: int) -> None:
    """Print images/s of LeNet with audits as a share of those without."""
    options = ("--shards", "8", "--epochs", "4", "--max-steps", "120", "--log-every", "20", "--batch-size", "256")
    speeds: dict[int, list[float]] = {every: [] for every in (0, 1, 10, 100)}
    for _ in range(repeats):
        for every, measured in speeds.items():
            with tempfile.TemporaryDirectory() as name:
                records = job(Path(name), 2, *options, *(["--audit", str(every)] if every else []))
            trained = [record["images_per_s"] for record in records if record["kind"] == "train"]
            measured.append(statistics.median(trained[1:]))
    for every in (1, 10, 100):
        shares = [with_audits / without for with_audits, without in zip(speeds[every], speeds[0], strict=True)]
        print(f"--audit {every}: {statistics.median(shares):.3f} of the images/s without ({json.dumps(shares)})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("flips", "sound", "cost"))
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    match given.what:
        case "flips":
            run_flips(given.trials, given.kinds)
        case "sound":
            run_sound(given.steps, given.seed)
        case _:
            run_cost(given.repeats)


if __name__ == "__main__":
    main()
