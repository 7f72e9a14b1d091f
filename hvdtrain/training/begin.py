"""How a run begins on a rank: all ranks start or resume it together, or the rank joins others that train already."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from hvdtrain.collectives.arrays import broadcast_arrays
from hvdtrain.collectives.surviving import RanksChanged, SurvivingGroup, rank_of
from hvdtrain.datasets.reader import Reader
from hvdtrain.interfaces.learner import Position
from hvdtrain.runs import record
from hvdtrain.runs.console import log
from hvdtrain.system import agent_pipe
from hvdtrain.system.agent_pipe import OpenedRun
from hvdtrain.system.text import printable
from hvdtrain.training import arithmetic, consistency
from hvdtrain.training.batches import Batches
from hvdtrain.training.run import RunContext
from hvdtrain.training.state import Start, must_write, open_log, resume
from hvdtrain.training.survival import Agreement, Standing, agree, receive
from hvdtrain.training.watchdog import MIN_LIMIT_S

if TYPE_CHECKING:
    from hvdtrain.runs.trackers.tracking import Tracking

Findings = list[dict[str, Any]]
"""What the doctor's checks found on this host: `status`, `text`, `remedy` and more of each."""


class AlreadyFinished(Exception):
    """A run to resume has its last step and its result: there is nothing to do, and its folder stays as it is.

    at: its last position. Its weights are in the learner.
    """

    def __init__(self, run: RunContext, at: Position) -> None:
        super().__init__(run, at)
        self.run, self.at = run, at


Begun = tuple[RunContext, Start, "Tracking | None"]


def begin(run: RunContext, examine_host: Callable[[], Findings], replays: bool = False) -> Begun:
    """Start or resume a run together with the other ranks. run: without a folder."""
    consistency.check_same_options(run.group, run.config, run.runtime, run.target, run.dataset.fingerprint)
    if run.config.shards:
        arithmetic.check_same_on_ranks(run.group, run.arithmetic)
    start = resume(run, replays)
    run = dataclasses.replace(run, folder=start.folder)
    if start.is_finished:
        _leave_as_it_is(run, start.position)
    if run.local_steps:
        run.local_steps.begin(start.position.step)
    if run.is_rank_0:
        checkpoint = str(start.parent.path) if start.parent else ""
        agent_pipe.send(OpenedRun(str(run.folder), run.runtime.auto_resume, checkpoint))
    return run, start, _start_records(run, start.position, examine_host)


def begin_or_join(
    run: RunContext, group: SurvivingGroup, reader: Reader, examine_host: Callable[[], Findings]
) -> Begun:
    """In a job that survives lost ranks: `begin` with all ranks, or join those that train already."""
    if group.is_replacement:
        _warm_up(run, reader)
    group.join(max(run.runtime.hang_timeout, MIN_LIMIT_S))
    while True:
        try:
            agreement = agree(group, Standing())
            if agreement.root >= 0:
                begun = _join(run, group, agreement, examine_host)
            else:
                run.learner.load(broadcast_arrays(group, run.learner.weights()))
                begun = begin(run, examine_host)
            group.trains()
            return begun
        except RanksChanged as change:
            group.renew(change)


def _join(run: RunContext, group: SurvivingGroup, agreement: Agreement, examine_host: Callable[[], Findings]) -> Begun:
    """Go on with the others, who train already, from their state."""
    given = receive(run, agreement.root)
    run = dataclasses.replace(run, folder=given.folder)
    open_log(run.folder, group, run.runtime)
    log.info("rank %d joins %d others at step %d", rank_of(group), group.size - 1, agreement.step)
    run.not_finite_at_first.update(consistency.not_finite(run.learner.weights()))
    tracking = None
    if run.is_rank_0:  # it was cut off from the others while they began
        tracking = write_records(run, given.state.position, examine_host)
    start = Start(given.folder, given.state.position, losses=given.losses, is_settled=agreement.is_settled)
    return run, start, tracking


def _warm_up(run: RunContext, reader: Reader) -> None:
    """Make a step alone, before the others wait for this rank: frameworks need longer for the first one."""
    learner, at = run.learner, Position(global_batch=run.global_batch, seed=run.config.seed)
    if run.target.kind == "script":  # whose loop makes the steps
        return
    weights = {name: array.copy() for name, array in learner.weights().items()}
    state = learner.optimizer_state()
    before = state._replace(arrays={name: array.copy() for name, array in state.arrays.items()})
    for batch in Batches(run, reader).of_epoch(at, 1):
        learner.train_step(batch)
    learner.load(weights)
    learner.load_optimizer_state(before)
    learner.load_averages({})
    learner.skipped = 0


def _leave_as_it_is(run: RunContext, at: Position) -> NoReturn:
    """Say that there is nothing to do, end the communication with the other ranks, and raise AlreadyFinished."""
    options = "--patience" if at.has_waited(run.config.patience) else "--epochs or --max-steps"
    if run.is_rank_0 and not run.runtime.quiet:
        print(
            f"nothing to do: {printable(f'{run.folder}')} has finished, at step {at.step} of {run.last_step}; "
            f"to train further, raise {options}",
            file=sys.stderr,
            flush=True,
        )
    run.group.close()
    raise AlreadyFinished(run, at)


def _start_records(run: RunContext, position: Position, examine_host: Callable[[], Findings]) -> Tracking | None:
    """Compare the ranks' weights, and begin to write what the run records; returns who hands it to trackers."""
    weights = run.learner.weights()
    run.not_finite_at_first.update(consistency.not_finite(weights))
    parameters = run.check_same_weights(position.step, "before the first step", weights)
    log.info("rank %d of %d starts with parameters %s", rank_of(run.group), run.group.size, parameters)
    if run.config.shards:
        arithmetic.warn_of_processors(run.group, run.arithmetic)
    return write_records(run, position, examine_host) if run.is_rank_0 else None


def write_records(run: RunContext, position: Position, examine_host: Callable[[], Findings]) -> Tracking | None:
    """On rank 0: write what the run records before its first step; returns who hands it to trackers."""
    with must_write("the record of this run", run.folder):
        return start_tracking(run, _write_record(run, examine_host), position)


def start_tracking(run: RunContext, content: dict[str, Any], position: Position) -> Tracking | None:
    """Who hands what the run records to its trackers, if there are some. content: of `config.json`."""
    if not run.runtime.tracker:
        return None
    from hvdtrain.runs.trackers.tracking import Tracking

    return Tracking(run.runtime.tracker, run.folder, content, position.step)


def _write_record(run: RunContext, examine_host: Callable[[], Findings]) -> dict[str, Any]:
    """Write what is known before the first step; the content of `config.json`."""
    target = run.target.record()
    bits = {name: value for name, value in run.arithmetic.items() if name not in arithmetic.ELSEWHERE}
    data = run.dataset.fingerprint[: record.FINGERPRINT_DIGITS]
    written = record.write_options(
        run.folder, run.recorded_options, run.runtime, target, run.learner, run.last_step, bits, data
    )
    findings = examine_host()
    record.write_json(run.folder / "doctor.json", {"findings": findings})
    for finding in findings:
        if finding["status"] == "fail":
            log.warning("%s; %s", finding["text"], finding["remedy"])
    return written
