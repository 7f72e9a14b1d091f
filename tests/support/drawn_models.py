"""Draws models and scripts, and trains each in all ways: by a loop of its framework, and by hvdtrain on 1 to 3 ranks.

usage: python -m support.drawn_models FRAMEWORK|"Drawn(...)" [--seeds FIRST:LAST] [--ways PATTERN]

The framework is imported once; each rank of each training is a fork of this process, with files of its own. Forks of
TensorFlow make one training after another, as its start takes most of the time of a small one. A seed that fails prints
its model, and `--seeds N` tries it alone, or what is printed, in which pieces may be left out.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib
import itertools
import multiprocessing
import os
import random
import re
import resource
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from unittest import mock

import numpy as np

from hvdtrain.jobs import gloo
from hvdtrain.system import processes
from hvdtrain.system.network import PortReservation
from hvdtrain.system.rank_info import RankInfo
from hvdtrain.tasks.progress import Progress, place
from support import forks

FEATURES, CLASSES, BATCH, EPOCHS, STOP, LR = 6, 5, 12, 2, 3, 0.05
"""STOP: the step at which an interrupted training is stopped."""
HALF = 2e-3
"""What layers in bfloat16 round."""
LIMIT_S, GRACE_S = 180, 10
BEFORE = "before the first step"
TASK = """
from support.drawn_models import Drawn, task_class

Task = task_class({drawn})
"""


@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of a model, of its losses or of a script.

    by_row: rows pass it one by one, else parts of a step compute something else. refused: it may be refused.
    in_evaluation: an evaluation may change it. draws: it draws random numbers. fixed: it takes BATCH rows only.
    local: training uses buffers that differ by rank. alone: it is not drawn, as other ranks, a resume or other pieces
    change what it does. outside: it has what no checkpoint has, or what hvdtrain does not train, which must be refused,
    of `tasks` only or in `all`.
    tolerance: what it rounds in three steps. form: makes a model of a body and its last layer, for these losses.
    """

    make: Any
    by_row: bool = True
    refused: bool = False
    in_evaluation: bool = False
    draws: bool = False
    fixed: bool = False
    local: bool = False
    alone: bool = False
    outside: str = ""
    tolerance: float = 2e-5
    form: Any = None


Pieces = dict[str, Piece]
ODD = functools.partial(Piece, refused=True)
STATE = functools.partial(Piece, by_row=False, refused=True)
EVALUATED = functools.partial(STATE, in_evaluation=True)
OUTSIDE = functools.partial(ODD, outside="all")
KEPT = functools.partial(STATE, outside="tasks")
ODDS = {
    "own backward": ODD(None),
    "called twice": ODD(None),
    "schedule": Piece(None),
    "clipped after the step": Piece(None),
    "clipped before the step": ODD(None),
    "two models": Piece(None),
    "loop over epochs": Piece(None),
    "left early": Piece(None),
    "metrics": Piece(None),
    "evaluates in training mode": EVALUATED(None),
    "evaluates with gradients": Piece(None),
    "draws in evaluations": Piece(None, draws=True),
    "logs": Piece(None),
}
"""What scripts of all frameworks do."""


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A model with its losses, and how it is trained.

    odds: what a script does besides; None for a task. optimizer: of the task's own, by name; empty for the options'.
    """

    framework: str
    seed: int
    pieces: tuple[str, ...]
    losses: str = "plain"
    odds: tuple[str, ...] | None = None
    rows: int = 3 * BATCH
    test_rows: int = BATCH
    strategy: str = "ring"
    shards: int = 4
    options: dict[str, str] = dataclasses.field(default_factory=dict)
    resumed_on: tuple[int, int] = (1, 1)
    optimizer: str = ""

    @property
    def kinds(self) -> Any:
        """The module with the framework's pieces."""
        return importlib.import_module(f"support.drawn.of_{self.framework}")

    @property
    def begin(self) -> Callable[[Callable[[], None], Path], Forked]:
        """What starts a process of it."""
        return Shared.begin if self.framework == "tensorflow" else Forked

    @property
    def parts(self) -> list[Piece]:
        """All that it is made of."""
        kinds = self.kinds
        named = [kinds.PIECES[name] for name in self.pieces] + [kinds.LOSSES[self.losses]]
        named += [kinds.OPTIMIZERS[self.optimizer]] if self.optimizer else []
        return named + [kinds.ODDS[name] for name in self.odds or ()]

    def has(self, flag: str) -> bool:
        return any(getattr(part, flag) for part in self.parts)

    @property
    def by_row(self) -> bool:
        return all(part.by_row for part in self.parts)

    @property
    def tolerance(self) -> float:
        return max([part.tolerance for part in self.parts] + [HALF] * ("precision" in self.options))

    @property
    def data(self) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
        """Rows to train and to test."""
        count = self.rows + self.test_rows
        numbers = np.random.default_rng(self.seed).normal(size=(count, FEATURES)).astype(np.float32)
        arrays = numbers, np.random.default_rng([self.seed, 1]).integers(0, CLASSES, count)
        return tuple(array[: self.rows] for array in arrays), tuple(array[self.rows :] for array in arrays)


def task_class(of: Drawn) -> type:
    """The class of a task."""

    class Task:
        drawn, mixes_rows = of, True

        def data(self) -> Any:
            return of.data

        def model(self) -> Any:
            return of.kinds.model_of(of)

        def losses(self, outputs: Any, labels: Any) -> Any:
            return of.kinds.LOSSES[of.losses].make(outputs, labels)

    if of.optimizer:
        make = of.kinds.OPTIMIZERS[of.optimizer].make
        Task.optimizer = (  # type: ignore[attr-defined]
            lambda _, named: make([one for _, one in named]) if of.framework == "torch" else make()
        )
    return Task


def draw(framework: str, seed: int) -> Drawn:
    """The model of this seed."""
    chosen = random.Random(f"{framework} {seed}")
    kinds = importlib.import_module(f"support.drawn.of_{framework}")
    by_row = chosen.random() < 0.5
    scripted = bool(kinds.ODDS) and chosen.random() < 0.5

    def some(pieces: Pieces, counts: tuple[int, ...]) -> tuple[str, ...]:
        """Names of pieces, of those whose names begin with the same word at most one."""
        kinds: dict[str, list[str]] = {}
        for name, piece in pieces.items():
            if (piece.by_row or not by_row) and not (piece.alone or (piece.outside == "tasks" and scripted)):
                kinds.setdefault(name.partition(" ")[0], []).append(name)
        groups = chosen.sample(list(kinds.values()), min(chosen.choice(counts), len(kinds)))
        return tuple(map(chosen.choice, groups))

    rows, shards = chosen.choice((3 * BATCH, 3 * BATCH + 1, 3 * BATCH + 5)), chosen.choice((3, 4, 5))
    fits = not scripted or not 0 < rows % BATCH < shards  # a script gets no shard without rows
    own = random.Random(f"{framework} {seed} optimizer")
    drawn = [name for name, piece in kinds.OPTIMIZERS.items() if not piece.alone]
    optimizer = own.choice(drawn) if drawn and own.random() < 0.5 else ""
    options = [{}, {"clip-norm": "1e6"}]
    if not scripted:
        options += [
            {},
            {"on-nan": "skip"},
            *(kinds.OPTIONS if not optimizer else ()),
            *({"accumulate": n} for n in "23" if by_row),
        ]
    return Drawn(
        framework,
        seed,
        some(kinds.PIECES, (1, 1, 2, 3)),
        chosen.choice([*some(kinds.LOSSES, (1,)), "plain"]),
        some(kinds.ODDS, (0, 1, 2)) if scripted else None,
        rows,
        chosen.choice((BATCH, BATCH, 20)),
        chosen.choice(kinds.STRATEGIES),
        shards,
        {"remainder": chosen.choice(("pad", "exact", "drop") if fits else ("drop",)), **chosen.choice(options)},
        chosen.choice(((1, 2), (2, 1), (3, 2), (2, 3), (1, 1), (2, 2))),
        optimizer,
    )


class Way(NamedTuple):
    """How a model is trained. first: the number of ranks until STOP, if it is stopped there and resumed."""

    name: str
    ranks: int
    shards: bool
    first: int = 0


def ways(drawn: Drawn) -> list[Way]:
    first, then = drawn.resumed_on
    shards = [Way(f"shards on {ranks}", ranks, True) for ranks in (1, 2, 3)]
    resumed = [Way("two resumed", 2, False, 2), Way(f"shards on {first}, then {then}", then, True, first)]
    if drawn.framework == "tensorflow":  # which compiles each step again in each rank
        shards = shards[::2]
    return [Way("one", 1, False), Way("two", 2, False), *shards, resumed[drawn.seed % 2]]


@dataclasses.dataclass
class Outcome:
    """How a training ended: `trained`, `refused` or `failed`, and why."""

    end: str
    text: str = ""
    weights: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    records: list[dict[str, Any]] = dataclasses.field(default_factory=list)


class PlainRun:
    """What a script trains without hvdtrain: the same rows in the same order.

    tensor, update, evaluating: the framework's part of it. evaluates: whether it evaluates after each epoch.
    """

    rank, size = 0, 1

    def __init__(self, drawn: Drawn, evaluates: bool, framework: Any) -> None:
        self.drawn, self._evaluates, self._framework = drawn, evaluates, framework
        self.steps, self.epochs, self.scores = 0, EPOCHS, {}

    def setup(self, model: Any, optimizer: Any, unused_parameters: bool = False) -> tuple[Any, Any]:
        self.model, self.optimizer = model, optimizer
        return model, optimizer

    def register(self, **states: Any) -> None: ...

    def log(self, **values: Any) -> None: ...

    def each_epoch(self, train: Any, test: Any, evaluate: Any) -> Iterator[Iterator[Any]]:
        for epoch in range(EPOCHS):
            yield self._epoch(epoch, train)
            place.now = Progress(self.steps, epoch + 1)
            if self._evaluates:
                with self._framework.evaluating(self.model):
                    evaluate(*map(self._framework.tensor, test))

    def batches(self, train: Any, test: Any, evaluate: Any) -> Iterator[Any]:
        return itertools.chain.from_iterable(self.each_epoch(train, test, evaluate))

    def _epoch(self, epoch: int, train: Any) -> Iterator[Any]:
        batches = plain_batches(self.drawn, epoch)
        for number, rows in enumerate(batches):
            self.ends_epoch = number == len(batches) - 1
            place.now = Progress(self.steps, epoch, training=True)
            yield tuple(self._framework.tensor(array[rows]) for array in train)
            self.steps += 1

    def step(self, losses: Any) -> bool:
        self._framework.update(self, losses)
        return True


def nothing(*_: Any) -> None: ...


def loop(
    drawn: Drawn,
    run: Any,
    odds: set[str],
    losses: Callable[..., Any],
    evaluate: Callable[..., Any],
    clip: Callable[[], None],
    before: Callable[..., None] = nothing,
    after: Callable[[], None] = nothing,
) -> None:
    """A script's loop. losses, before: of the arrays of a batch. clip, after: what it does after an update."""

    def trained(*batch: Any) -> bool:
        """Whether to leave the loop after this batch."""
        before(*batch)
        if "clipped before the step" in odds:
            clip()
        found = losses(*batch)
        if "logs" in odds:
            mean = found.mean()
            run.log(mean=mean.asscalar() if drawn.framework == "mxnet" else mean)
        if run.step(found):
            after()
            if "clipped after the step" in odds:
                clip()
            return "left early" in odds and run.steps + 1 == 5
        return False

    train, test = drawn.data
    if "loop over epochs" in odds:
        for batches in run.each_epoch(train, test, evaluate):
            if max([trained(*batch) for batch in batches], default=False):  # takes all batches
                break
    else:
        for batch in run.batches(train, test, evaluate):
            if trained(*batch):
                break


def plain_batches(drawn: Drawn, epoch: int) -> list[np.ndarray]:
    """The numbers of the rows of each step."""
    from hvdtrain.datasets import sharding

    order = sharding.order(drawn.seed, epoch, drawn.rows)
    steps = sharding.steps_per_epoch(drawn.rows, BATCH, drawn.options.get("remainder", "pad"))
    return [order[step * BATCH : (step + 1) * BATCH] for step in range(steps)]


def prepare(framework: str) -> Any:
    """Import all that a rank imports, and start nothing; returns the framework's pieces."""
    from hvdtrain.frameworks import registry

    importlib.import_module(f"hvdtrain.frameworks.{framework}")
    registry.list_strategies(framework)
    for name in ("api", "cli.train", "training.train", "training.user_loop", "doctor", "runs.checkpoints"):
        importlib.import_module(f"hvdtrain.{name}")
    if framework in registry.USER_LOOPS:
        importlib.import_module(f"hvdtrain.frameworks.{framework}.user_loop")
    return importlib.import_module(f"support.drawn.of_{framework}")


def forked(function: Callable[[], None], output: Path) -> int:
    """A process that calls this, with its output in a file, and ends with the status of `SystemExit`."""
    sys.stdout.flush()
    parent, pid = os.getpid(), os.fork()
    if pid:
        return pid

    def run() -> None:
        processes.end_with_parent()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getppid() != parent:  # which ended meanwhile
            sys.exit(1)
        write_to(output)
        function()

    forks.end_with(run)


def write_to(output: Path) -> None:
    """Append what this process prints to a file."""
    sys.stdout.flush()
    file = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for number in (1, 2):
        os.dup2(file, number)
    os.close(file)


class Forked:
    """A process for one call."""

    def __init__(self, function: Callable[[], None], output: Path) -> None:
        self.pid: int | None = forked(function, output)

    def status(self) -> int | None:
        """That of its end; None before."""
        assert self.pid
        done, status = os.waitpid(self.pid, os.WNOHANG)
        if not done:
            return None
        self.pid = None
        return os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = None


class Shared(Forked):
    """A process for one call after another, which a call that fails ends.

    TensorFlow then starts once, and converts the functions of layers once, which take most of the time of a small run.
    """

    idle: ClassVar[list[Shared]] = []
    CALLS = 40
    """After so many, another process takes over: graphs are never freed."""

    def __init__(self) -> None:
        self._calls = 0
        self._connection, theirs = multiprocessing.Pipe()
        super().__init__(functools.partial(self._serve, theirs), Path(os.devnull))
        theirs.close()

    @classmethod
    def begin(cls, function: Callable[[], None], output: Path) -> Shared:
        """The process that makes this call."""
        process = cls.idle.pop() if cls.idle else cls()
        process._calls += 1
        process._connection.send((function, output))
        return process

    def status(self) -> int | None:
        if self._connection.poll():
            with contextlib.suppress(EOFError):  # it has ended instead
                self._connection.recv()
                if self._calls < self.CALLS:
                    self.idle.append(self)
                else:
                    self.kill()
                return 0
        return super().status()

    @staticmethod
    def _serve(connection: Any) -> None:
        import tensorflow as tf

        while True:
            function, output = connection.recv()
            write_to(output)
            tf.keras.backend.clear_session()  # layers are numbered anew: Horovod combines variables by their names
            function()
            connection.send(None)


def ended(started: list[Forked]) -> list[int]:
    """The statuses of processes; the others are killed some time after one has failed, or if they take too long."""
    statuses: dict[Forked, int] = {}
    limit = time.monotonic() + LIMIT_S
    try:
        while len(statuses) < len(started):
            for process in [process for process in started if process not in statuses]:
                status = process.status()
                if status is not None:
                    statuses[process] = status
                    if status:
                        limit = min(limit, time.monotonic() + GRACE_S)
                elif time.monotonic() > limit:
                    process.kill()
                    statuses[process] = -signal.SIGKILL
            time.sleep(0.005)
    finally:
        for process in started:
            if process not in statuses:
                process.kill()
    return [statuses[process] for process in started]


@contextlib.contextmanager
def launched(strategy: str, ranks: int, output: Path) -> Iterator[list[dict[str, str]]]:
    """The variables that a launcher sets for each rank, and those of Horovod."""
    if ranks == 1:
        yield [{}]
        return
    reserved = PortReservation()
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(reserved.port), "HOROVOD_GLOO_IFACE": "lo"}
    common |= {"HVDTRAIN_TOKEN": secrets.token_hex(8), "HVDTRAIN_SIZE": str(ranks)}
    of_ranks = [{**common, "HVDTRAIN_RANK": str(rank), "HVDTRAIN_LOCAL_RANK": str(rank)} for rank in range(ranks)]
    server = serving_horovod(ranks, output) if strategy == "horovod" else contextlib.nullcontext([{}] * ranks)
    try:
        with server as own:
            yield [{**common, **variables} for common, variables in zip(of_ranks, own, strict=True)]
    finally:
        reserved.release()


@contextlib.contextmanager
def serving_horovod(ranks: int, output: Path) -> Iterator[list[dict[str, str]]]:
    """The variables by which each rank finds Horovod's server, while that runs in a process."""
    reading, writing = os.pipe()

    def serve() -> None:
        os.write(writing, b"%06d" % gloo.Store("127.0.0.1", ranks=ranks).port)
        signal.pause()

    server = forked(serve, output / "server.txt")
    try:
        address = "127.0.0.1", int(os.read(reading, 6))
        infos = [RankInfo("launch local", rank, ranks, rank) for rank in range(ranks)]
        yield [gloo.environment(info, gloo.Layout(ranks, 0, 1), *address) for info in infos]
    finally:
        for descriptor in (reading, writing):
            os.close(descriptor)
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)


def arguments(drawn: Drawn, way: Way, ranks: int, last: int) -> list[str]:
    """The command line of a rank. last: the last step, 0 for all."""
    options = {**drawn.options, "seed": str(drawn.seed), "epochs": str(EPOCHS), "batch-size": str(BATCH)}
    options |= {"name": "run", "device": "cpu", "log-every": "1", "workers": "0", "bind": "none"}
    options |= {"strategy": "single" if ranks == 1 else drawn.strategy}
    if drawn.odds is None and not drawn.optimizer:
        options |= {"lr": str(LR), "momentum": "0.9", "schedule": "constant", "warmup-epochs": "0"}
    if drawn.strategy == "ddp":
        options |= {"accumulate": "1"}  # it makes no parts, and one process is to compute the same
    if way.shards:
        options |= {"shards": str(drawn.shards)}
    if way.first:
        options |= {"resume": "auto", "max-steps": str(last)}
    return [*(f"--{name}={value}" if value else f"--{name}" for name, value in options.items()), "--quiet"]


def rank(drawn: Drawn, folder: Path, variables: dict[str, str], argv: list[str]) -> None:
    """What a rank does: the command of a task, or the script."""
    import hvdtrain
    from hvdtrain.__main__ import main
    from hvdtrain.system import start_folder
    from hvdtrain.training import loop, process
    from support.in_process import inside

    after_step = loop.TrainingLoop.after_step
    counted = folder / f"steps-{variables.get('HVDTRAIN_RANK', '0')}.txt"

    def counting(*given: Any) -> None:
        after_step(*given)
        counted.write_text("some")

    with contextlib.ExitStack() as stack:
        stack.enter_context(inside(folder))
        os.environ.update(variables)
        for module in ("hvdtrain.cli.train", "hvdtrain.api"):
            stack.enter_context(mock.patch(f"{module}.examine_host", list))
        stack.enter_context(mock.patch.object(start_folder, "START", str(folder)))
        stack.enter_context(mock.patch.object(loop.TrainingLoop, "after_step", counting))
        for name in ("OTHER_RANKS_WAIT_S", "UNEXPECTED_ERROR_WAIT_S"):
            stack.enter_context(mock.patch.object(process, name, 0.2))
        if drawn.odds is None:
            main(["train", "task.py:Task", "--framework", drawn.framework, *argv])
            return
        with hvdtrain.start(arguments=argv, framework=drawn.framework) as run:
            drawn.kinds.script(drawn, run)


def save_plain(drawn: Drawn, evaluates: bool, file: Path) -> None:
    np.savez(file, **drawn.kinds.plain(drawn, evaluates))


def plain(drawn: Drawn, evaluates: bool, folder: Path) -> dict[str, np.ndarray] | None:
    """The weights after the framework's own loop; None where that fails."""
    folder.mkdir()
    file = folder / "weights.npz"
    status = ended([drawn.begin(functools.partial(save_plain, drawn, evaluates, file), folder / "output.txt")])
    return dict(np.load(file)) if status == [0] else None


def train(drawn: Drawn, way: Way, folder: Path) -> Outcome:
    """Train in this way, in a new folder."""
    folder.mkdir()
    (folder / "task.py").write_text(TASK.format(drawn=drawn))
    parts = [(way.first, STOP), (way.ranks, 2 * STOP + 2)] if way.first else [(way.ranks, 0)]
    for number, (ranks, last) in enumerate(parts):
        output = folder / f"part-{number}"
        output.mkdir()
        with launched(drawn.strategy, ranks, output) as variables:
            argv = arguments(drawn, way, ranks, last)
            ranks_of = [functools.partial(rank, drawn, folder, of_rank, argv) for of_rank in variables]
            statuses = ended([drawn.begin(one, output / f"rank-{place}.txt") for place, one in enumerate(ranks_of)])
        if any(statuses):
            return _unsuccessful(folder, output, statuses)
    return _trained(folder)


def _unsuccessful(folder: Path, output: Path, statuses: list[int]) -> Outcome:
    texts = [(output / f"rank-{number}.txt").read_text(errors="replace") for number in range(len(statuses))]
    steps = [*folder.glob("steps-*.txt")]
    said = [re.findall(r"^hvdtrain: (.*)", text, re.M) for text in texts]
    refusing = [lines[-1] for status, lines in zip(statuses, said, strict=True) if status == 2 and lines]
    if refusing and not steps and {*statuses} <= {1, 2, -signal.SIGKILL}:  # others have lost it
        return Outcome("refused", refusing[0])
    last = [lines[-1] if lines else text.strip()[-600:] for lines, text in zip(said, texts, strict=True)]
    first = next(text for status, text in zip(statuses, last, strict=True) if status)
    return Outcome("failed", f"failed {'after a step' if steps else BEFORE}: {re.sub('^rank [0-9]+: ', '', first)}")


def _trained(folder: Path) -> Outcome:
    from hvdtrain.runs import checkpoints
    from support import same_bits

    runs = [path.parent for path in folder.rglob("result.json")]
    if len(runs) != 1 or len([*folder.rglob("config.json")]) != 1:
        return Outcome("failed", f"not one run, but {sorted(map(str, folder.rglob('config.json')))}")
    _, saved = checkpoints.newest(runs[0])
    weights = dict(saved.weights)
    if saved.framework == "tensorflow":  # by their place, as a plain loop has no names that last
        weights = {name.partition(".")[0]: array for name, array in weights.items()}
    return Outcome("trained", same_bits.weights_hash(runs[0]), weights, same_bits.numbers(runs[0]))


def problems(drawn: Drawn, outcomes: dict[Way, Outcome], references: list[dict[str, np.ndarray]]) -> Iterator[str]:
    """What is wrong with the outcomes."""
    of_ways: dict[str, list[str]] = {}
    for way, outcome in outcomes.items():
        text = ""
        if outcome.end == "failed":
            # It would fail without hvdtrain, too. A script's last batch is not tried before the first step.
            in_script = drawn.odds is not None and drawn.has("fixed")
            is_own = in_script + (BEFORE in outcome.text) + (not references) > 1
            # A run that ends before an incomplete last batch does not try it; the run that goes on does.
            refusals = [other.text for other in outcomes.values() if other.end == "refused" and way.first]
            is_own |= any(refusal.rpartition("; ")[2] in outcome.text for refusal in refusals)
            text = "" if is_own else outcome.text
        elif outcome.end == "refused" and references and not drawn.has("refused"):
            text = f"refused, though a plain loop trains it: {outcome.text}"
        elif outcome.end == "trained" and drawn.has("outside"):
            text = "trained, with what no checkpoint has"
        elif outcome.end == "trained":
            text = _distance(drawn, way, outcome.weights, references)
        if text:
            of_ways.setdefault(text, []).append(way.name)
    yield from (f"{', '.join(names)}: {text}" for text, names in of_ways.items())
    for shards in (False, True):
        of_kind = {way: outcome for way, outcome in outcomes.items() if way.shards == shards and way.name != "one"}
        if len({outcome.end for outcome in of_kind.values()} - {"failed"}) > 1:
            yield f"not the same: { {way.name: outcome.end for way, outcome in of_kind.items()} }"
        trained = {way: outcome for way, outcome in of_kind.items() if outcome.end == "trained"}
        if drawn.has("local") and not shards and STOP % len(plain_batches(drawn, 0)):  # docs/own.md: rank 0's for all
            trained = {way: outcome for way, outcome in trained.items() if not way.first}
        if len({outcome.text for outcome in trained.values()}) > 1:
            yield f"not one hash: { {way.name: outcome.text for way, outcome in trained.items()} }"
        records = [outcome.records for way, outcome in trained.items() if not way.first]
        if any(record != records[0] for record in records):
            pairs = itertools.chain.from_iterable(zip(records[0], other, strict=False) for other in records)
            yield f"not one record: {next(((a, b) for a, b in pairs if a != b), 'of another length')}"


def _distance(drawn: Drawn, way: Way, weights: dict[str, np.ndarray], references: list[dict[str, np.ndarray]]) -> str:
    """How the weights differ from those of all references; empty if they need not be the same, or are."""
    pads = drawn.options.get("remainder", "pad") == "pad" and drawn.rows % BATCH
    alone = way.name == "one" and not pads
    if drawn.has("draws") or not (drawn.by_row or alone):
        return ""
    tolerance = drawn.tolerance * (1000 if drawn.options.get("optimizer") == "adam" else 10)
    found = [_differing(weights, reference, tolerance) for reference in references]
    return "" if not found or "" in found else f"{found[0]} from the plain loop"


def _differing(weights: dict[str, np.ndarray], reference: dict[str, np.ndarray], tolerance: float) -> str:
    if missing := reference.keys() - weights.keys():
        return f"{min(missing)} is missing"
    for name, expected in reference.items():
        found = weights[name].reshape(expected.shape) if weights[name].size == expected.size else weights[name]
        if found.shape != expected.shape:
            return f"{name} has the shape {found.shape}, not {expected.shape},"
        if not np.allclose(found, expected, rtol=tolerance, atol=tolerance):
            return f"{name} is {np.abs(found.astype(complex) - expected).max():.3g} away"
    return ""


def attempt(drawn: Drawn, some: str = "") -> list[str]:
    """Train a model in the ways whose names this pattern finds; what is wrong."""
    folder = Path(tempfile.mkdtemp(prefix="drawn-"))
    try:
        chosen = [way for way in ways(drawn) if re.search(some, way.name)]
        variants = (True, False) if drawn.has("in_evaluation") else (True,)
        given = [plain(drawn, evaluates, folder / f"plain-{evaluates}") for evaluates in variants]
        references = [weights for weights in given if weights is not None]
        outcomes = {way: train(drawn, way, folder / way.name.replace(" ", "-")) for way in chosen}
        return list(problems(drawn, outcomes, references))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework")
    parser.add_argument("--seeds", default="0:10")
    parser.add_argument("--ways", default="", help="pattern of the names of ways to train")
    given = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # leaves neither processes nor files
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))  # `make fuzz` limits parsers, not frameworks
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"), "1")  # before TensorFlow computes
    chosen = [eval(given.framework)] if given.framework.startswith("Drawn") else []
    prepare(chosen[0].framework if chosen else given.framework)
    first, _, last = given.seeds.partition(":")
    seeds, failed = range(int(first), int(last or int(first) + 1)), []
    with tempfile.TemporaryDirectory(prefix="drawn-") as folder:
        tempfile.tempdir = folder  # also of functions that AutoGraph converts, which processes leave as they are killed
        for drawn in chosen or (draw(given.framework, seed) for seed in seeds):
            if wrong := attempt(drawn, given.ways):
                failed.append(drawn.seed)
                print(f"{drawn.framework} --seeds {drawn.seed}: {drawn}", *wrong, "", sep="\n  ", flush=True)
        for process in Shared.idle:
            process.kill()
    print(f"{len(failed)} models failed: {failed}")
    return int(bool(failed))


if __name__ == "__main__":
    from support import drawn_models  # which tasks import, too

    sys.exit(drawn_models.main(sys.argv[1:]))
