"""How training goes on after the ranks have changed: which step counts, and who gives its state to whom.

All ranks end a step with the same bits, so the state of any rank will do. A rank may be a step behind: its sum broke
off while others had theirs already. So the furthest step counts, and ranks behind it, and new ones, get the state from
the first rank that has it. What was due after that step, such as an evaluation or a checkpoint, is done again by all,
unless each rank had done it: it depends on the state alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from hvdtrain.collectives.surviving import RanksChange, RanksChanged, RanksJoin, SurvivingGroup
from hvdtrain.errors import TrainingError
from hvdtrain.interfaces.learner import Checkpoint, Position
from hvdtrain.interfaces.strategy import Group
from hvdtrain.runs.console import log
from hvdtrain.system import agent_pipe
from hvdtrain.system.agent_pipe import Excluded
from hvdtrain.system.phases import RENEWING, phases
from hvdtrain.training import consistency
from hvdtrain.training.observer import Pause
from hvdtrain.training.ranks import IntervalCollector
from hvdtrain.training.run import RunContext
from hvdtrain.training.state import Start, broadcast_checkpoint, open_log, restore

T = TypeVar("T")


class Agreement(NamedTuple):
    root: int
    """Position of the first rank that has the furthest state; -1 if none has one, as training has not begun."""
    is_settled: bool
    """Whether all ranks that have a state have that one, and have done all that was due after its step."""
    is_shared: bool
    """Whether all ranks have that state already."""


def agree(group: Group, step: int = -1, is_settled: bool = True) -> Agreement:
    """From where all ranks go on; call it on every rank after each change.

    step: number of steps that this rank has done; -1 without a state of training. is_settled: whether all that was due
    after that step is done.
    """
    gathered = [tuple(standing) for standing in group.gather([step, is_settled])]
    steps = [step for step, _ in gathered]
    furthest = max(steps)
    is_settled = {standing for standing in gathered if standing[0] >= 0} <= {(furthest, True)}
    return Agreement(steps.index(furthest) if furthest >= 0 else -1, is_settled, min(steps) == furthest)


class Handover(NamedTuple):
    state: Checkpoint
    """Where training is, and all that a checkpoint has."""
    folder: Path
    """The run's."""
    options: dict[str, Any]
    """See `RunContext.shared_values`."""
    skipped: int
    """See `Learner.skipped`."""
    losses: list[Any]
    """See `IntervalCollector.losses`."""


def hand_over(group: Group, given: Handover | None, root: int) -> Handover:
    """What rank `root` gives, on every rank; the others give None. A collective."""
    state = broadcast_checkpoint(group, given.state if given else None, root)
    folder, options, skipped, losses = group.broadcast(given and given[1:], root)
    assert state
    return Handover(state, folder, options, skipped, losses)


def together(
    group: SurvivingGroup, work: Callable[[], T], change: RanksChanged | None = None
) -> tuple[T, RanksChange | None]:
    """What `work` returns, which is done with the other ranks, and again whenever they change; and all such changes.

    change: one that has come before.
    """
    before = group.membership
    while True:
        try:
            if change:
                group.renew(change)
            return work(), group.change_since(before) if change and before else None
        except RanksChanged as another:
            change = another


def renew(
    run: RunContext, ranks: IntervalCollector, change: RanksChanged, at: Position, is_settled: bool
) -> tuple[Position, bool, Pause]:
    """Where the ranks that train now go on: at the furthest step of all, and whether all that was due then is done.

    at, is_settled: of this rank. Each rank gets the furthest state, or gives it.
    """
    group, began, before = cast(SurvivingGroup, run.group), time.monotonic(), at.step
    in_step = is_settled and not isinstance(change, RanksJoin) and before < run.last_step
    phases.begin(RENEWING)

    def share_state() -> bool:
        nonlocal at, is_settled
        agreement = agree(group, at.step, is_settled)
        if not agreement.is_shared:
            given = None
            if group.rank == agreement.root:
                state = run.checkpoint(at, run.learner.weights())
                given = Handover(state, run.folder, run.shared_values, run.learner.skipped, ranks.losses)
            given = hand_over(group, given, agreement.root)
            if at.step < given.state.position.step:
                restore(run, run.folder, given.state)
                run.learner.skipped, ranks.losses = given.skipped, given.losses
                at, is_settled = given.state.position, False
        return agreement.is_settled

    is_done, changes = together(group, share_state, change)
    assert changes
    group.trains()
    return at, is_done, Pause(changes, time.monotonic() - began, int(in_step and at.step == before))


def join_others(run: RunContext, agreement: Agreement) -> Start:
    """On a rank that joins others, which train already: where it goes on with them, from their state.

    Raises TrainingError if its options, data or arithmetic are not theirs; they go on without it, and without its host.
    """
    group, given = run.group, hand_over(run.group, None, agreement.root)
    rank, local = group.place, run.shared_values
    others = ((name, value, local.get(name)) for name, value in given.options.items() if local.get(name) != value)
    problems = [f"has {name} {own}, and the others have {value}" for name, value, own in others]
    bits = consistency.changes(given.state.arithmetic, run.arithmetic)
    problems += [f"would compute other bits: {difference} on the others" for difference in bits]
    if problems:  # a job that trains well does not end for that
        agent_pipe.send(Excluded(rank, problems[0]))
        remedy = "use hosts of one kind, with the same files"
        raise TrainingError(f"rank {rank} cannot join: it {problems[0]}", remedy, rank=rank)
    restore(run, given.folder, given.state)
    run.folder, run.learner.skipped = given.folder, given.skipped
    open_log(run.folder, group, run.runtime)
    log.info("rank %d joins %d others at step %d", rank, group.size - 1, given.state.position.step)
    run.not_finite_at_first.update(consistency.not_finite(run.learner.weights()))
    return Start(given.state.position, losses=given.losses, is_settled=agreement.is_settled)
