"""How training goes on after the ranks have changed: which step counts, and who gives its state to whom.

All ranks end a step with the same bits, so the state of any rank will do. A rank may be a step behind: its sum broke off
while others had theirs already. So the furthest step counts, and ranks behind it, and new ones, get the state from the
first rank that has it. What was due after that step, such as an evaluation or a checkpoint, is done again by all, unless
each rank had done it: it depends on the state alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.collectives.arrays import broadcast_from
from hvdtrain.interfaces import Checkpoint, Group
from hvdtrain.training.state import broadcast_checkpoint


class Standing(NamedTuple):
    """How far a rank is."""

    step: int = -1
    """Number of steps done; -1 for a rank without a state of training."""
    settled: bool = True
    """Whether all that was due after that step is done."""


class Agreement(NamedTuple):
    """From where all ranks go on."""

    root: int
    """Position of the first rank that has the state; -1 if none has one, as training has not begun."""
    step: int
    settled: bool
    is_shared: bool
    """Whether all ranks have that state already."""


def agree(group: Group, standing: Standing) -> Agreement:
    """From where all ranks go on; call it on every rank after each change."""
    gathered = [Standing(*values) for values in group.gather(list(standing))]
    step = max(one.step for one in gathered)
    if step < 0:
        return Agreement(-1, step, True, True)
    begun = [one for one in gathered if one.step >= 0]
    settled = all(one.step == step and one.settled for one in begun)
    is_shared = all(one.step == step for one in gathered)
    return Agreement(next(i for i, one in enumerate(gathered) if one.step == step), step, settled, is_shared)


class Handover(NamedTuple):
    """What a rank needs from another one to go on."""

    state: Checkpoint
    """Where training is, and all that a checkpoint has."""
    folder: Path
    """The run's."""
    skipped: int
    """See `Learner.skipped`."""
    losses: list[Any]
    """Those of the steps since the last logging step: see `Ranks.pending`."""


def hand_over(group: Group, given: Handover | None, root: int) -> Handover:
    """What rank `root` gives, on every rank; the others give None. A collective."""
    state = broadcast_checkpoint(group, given.state if given else None, root)
    folder, skipped, losses = broadcast_from(group, given and tuple(given[1:]), root)
    assert state
    return Handover(state, folder, skipped, losses)
