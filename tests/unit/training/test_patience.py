"""The best score so far, and how many epochs have passed since."""

import dataclasses

import pytest

from hvdtrain.config.score import score_of
from hvdtrain.interfaces import Position


def trained(losses, patience, at=None):
    """The position at which a run with these losses ends."""
    at = at or Position()
    for loss in losses[at.epoch :]:
        at = dataclasses.replace(at, epoch=at.epoch + 1)
        for _ in range(2):  # ranks that change evaluate again
            score = score_of(loss, {})
            at = at.scored(score.order, score.choice) if score else at
        if at.has_waited(patience):
            break
    return at


@pytest.mark.parametrize(
    ("losses", "patience", "ends", "best"),
    [
        ([3, 2, 1, 2, 2, 2], 3, 6, 3),
        ([3, 2, 1, 2, 0.5, 2], 3, 6, 5),
        ([1, 1, 1, 1], 2, 3, 1),  # an equal score is not better
        ([float("nan")] * 4, 2, 2, 0),
        ([3, 2, 1, 2, 2, 2], 0, 6, 3),
    ],
)
def test_a_run_ends_when_no_epoch_was_better_for_so_long(losses, patience, ends, best):
    at = trained(losses, patience)
    assert (at.epoch, at.best_epoch) == (ends, best)
    for part in range(1, ends):
        assert trained(losses, patience, trained(losses[:part], patience)) == at


def test_another_score_begins_anew():
    at = dataclasses.replace(Position().scored(0.9, ""), epoch=4)
    score = score_of(5.0, {"perplexity": 30.0}, "min:perplexity")
    assert at.has_waited(4) and not at.scored(score.order, score.choice).has_waited(4)
