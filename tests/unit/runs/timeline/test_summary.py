"""A timeline in words."""

from support.timeline_steps import sent, step

from hvdtrain.runs.timeline.horovod_events import RankSteps
from hvdtrain.runs.timeline.summary import summary
from hvdtrain.system.phases import BACKWARD, FIT


def job(*by_rank, steps=10):
    """Steps of 10 ms of ranks on hosts, whose parts have these lengths (ms), by rank."""
    return [
        RankSteps(rank, f"host{rank}", [step(100 + i, 10 * i, **lengths) for i in range(steps)])
        for rank, lengths in enumerate(by_rank)
    ]


SLOW, FAST = {"backward": 6, "gradients": 0}, {"backward": 1, "gradients": 5}


def test_parts_and_the_rank_that_others_wait_for():
    first, last = summary(job(FAST, SLOW, FAST))
    assert first.startswith("steps 100 to 109 took 10 ms each: waiting for gradients 33% (33% until the last rank had")
    assert "backward 27%, forward 20%" in first
    assert last == (
        "rank 1 on host1 was the last with its gradients in 10 of 10 steps: the others waited 5 ms for it in each, "
        "50% of the time; backward took it 6 ms, other ranks 1 ms"
    )
    # After rank 1 was lost, ranks 0 and 2 recorded the steps: they have the numbers that the launcher gave them.
    first, second = job(FAST, SLOW)
    assert "rank 2 on host1 was the last with" in summary([first, second._replace(rank=2)])[1]


def test_no_rank_is_named_if_none_stands_out():
    even = job({}, {})
    assert summary(even)[1].startswith("no rank stands out: the last one came 0 ms after the others")
    turns = [
        RankSteps(rank, "", [step(i, 10 * i, **(SLOW if i % 2 == rank else FAST)) for i in range(10)])
        for rank in range(2)
    ]
    assert summary(turns)[1] == (
        "no rank stands out: the last one came 5 ms after the others on average (rank 0 in 5, rank 1 in 5 steps)"
    )


def test_clocks_that_are_not_exact_enough_name_no_rank():
    assert summary(job(FAST, SLOW), error_s=0.006)[1].startswith("which rank was last cannot be told")
    assert "rank 1 on host1" in summary(job(FAST, SLOW), error_s=0.004)[1]


def test_longest_step_is_explained():
    one = job({}, {})
    one[1].steps[4] = step(104, 40, data=31, gradients=2)
    one[0].steps[4] = step(104, 40, gradients=32)
    assert "step 104 took 40 ms: 30 ms more than usual for waiting for data on rank 1" in summary(one)


def test_one_rank():
    (text,) = summary(job({"gradients": 0}))
    assert text == "steps 100 to 109 took 8 ms each: backward 50%, forward 25%, waiting for data 12%, update 12%"
    assert summary(job({}, steps=1))[0].startswith("step 100 took 10 ms: ")
    other_steps = [RankSteps(0, "", [step(3, 0)]), RankSteps(1, "", [step(7, 0)])]
    for found in ([], [RankSteps(0, "", [])], other_steps):
        assert summary(found) == ["no step was recorded"]


def renamed(ranks, old, new):
    return [
        rank._replace(
            steps=[
                one._replace(parts=[part._replace(name=new if part.name == old else part.name) for part in one.parts])
                for one in rank.steps
            ]
        )
        for rank in ranks
    ]


def test_strategies_that_combine_gradients_elsewhere():
    late = renamed(job({"forward": 6, "gradients": 0}, {"forward": 2, "gradients": 4}), "gradients", BACKWARD.name)
    assert "rank 0 on host0 was the last to begin backward in 10 of 10 steps" in summary(late)[1]
    fit = renamed(job({"data": 5, "forward": 1, "backward": 1, "gradients": 2}, {}), "forward", FIT.name)
    fit = [rank._replace(steps=[one._replace(parts=[p for p in one.parts if p.name in ("data", FIT.name)]) for one in
                                rank.steps]) for rank in fit]  # fmt: skip
    assert "rank 0 on host0 was the last to begin it in 10 of 10 steps" in summary(fit)[1]


def test_messages_and_normal_steps():
    messages = [sent(10 * i + 8, _0=10 * i + 6, _1=10 * i + 7) for i in range(10)]
    texts = summary(job({}, {}), messages, normal_s=0.008)
    assert texts[2] == (
        "Horovod sent 1 message(s) in each step: the negotiation, from the gradients of the first rank until all had "
        "theirs, took 2 ms, the allreduce 1 ms (medians)"
    )
    assert texts[3] == "steps before, which were not recorded, took 8 ms each"
