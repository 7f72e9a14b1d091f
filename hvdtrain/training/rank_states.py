"""What each rank has by itself in a checkpoint: the state of its optimizer, and what it has still to send."""

from __future__ import annotations

import dataclasses

import numpy as np

from hvdtrain.interfaces.learner import RANK_ERROR, Checkpoint, Learner, OptimizerState


def drops_states(saved: Checkpoint, learner: Learner) -> bool:
    """Whether ranks had optimizer states of their own, which these ranks cannot have."""
    others = saved.other_ranks
    has_same = learner.state_by_rank and 1 + len(others) == learner.group.size
    return bool(others and others[0].keys() - {RANK_ERROR}) and not has_same


def for_ranks(saved: Checkpoint, learner: Learner) -> Checkpoint:
    """The checkpoint as these ranks resume it: of what each had by itself, they have the same, or what replaces it."""
    ranks, size = 1 + len(saved.other_ranks), learner.group.size
    if ranks == 1:
        return saved
    others = saved.other_ranks
    if drops_states(saved, learner):
        others = tuple({RANK_ERROR: arrays[RANK_ERROR]} if RANK_ERROR in arrays else {} for arrays in others)
    optimizer = saved.optimizer
    if ranks != size and RANK_ERROR in others[0]:  # the mean of all gradients then has the same still to come
        errors = [arrays[RANK_ERROR] for arrays in (optimizer.arrays, *others)]
        mean = np.mean(errors, axis=0, dtype=np.float64).astype(np.float32)
        optimizer = optimizer._replace(arrays=optimizer.arrays | {RANK_ERROR: mean})
    return dataclasses.replace(saved, optimizer=optimizer, other_ranks=others if ranks == size else ())


def local_state(learner: Learner, saved: Checkpoint) -> OptimizerState:
    """This rank's optimizer state: that of rank 0, with what each rank has by itself."""
    local = ({}, *saved.other_ranks)[learner.group.rank] if saved.other_ranks else {}
    return saved.optimizer._replace(arrays=saved.optimizer.arrays | local)
