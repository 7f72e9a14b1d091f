"""The file of a timeline."""

import json

import pytest
from support.timeline_steps import LENGTHS, MS, sent, step
from support.traces import Trace

from hvdtrain.runs.timeline.horovod_events import Message, RankSteps, add_given
from hvdtrain.runs.timeline.trace_file import trace


def ranks(**of_rank_1):
    return [
        RankSteps(0, "one", [step(5, 0), step(6, 10)]),
        RankSteps(1, "two", [step(5, 0, **of_rank_1), step(6, 10, **of_rank_1)]),
    ]


def written(folder, *arguments):
    path = folder / "timeline.json"
    path.write_text(json.dumps(trace(*arguments)))
    found = Trace(path)
    found.check()
    return found


def test_each_rank_has_its_steps_parts_and_messages(tmp_path):
    messages = [sent(8), sent(18)]
    both = ranks(backward=3, gradients=3)
    add_given(messages, both)
    found = written(tmp_path, both, messages, {"summary": ["text"]})
    assert found.about == {"summary": ["text"]}
    assert found.processes == {0: "rank 0 (one)", 1: "rank 1 (two)"}
    assert [name for _, name in sorted(found.names.items())] == 2 * ["main thread", "Horovod: w"]
    assert list(found.steps(1)) == ["step 5", "step 6"]
    assert [part.name for part in found.steps(1)["step 6"]] == list(LENGTHS)
    spans = [(one.name, one.begin, one.end) for one in found.messages(1)["w"]]
    assert spans[:3] == [
        ("negotiation", 6000, 8000), ("allreduce", 8000, 9000), ("GLOO_ALLREDUCE", 8000.01, 8999.99),
    ]  # fmt: skip
    assert spans[3:5] == [("negotiation", 16000, 18000), ("allreduce", 18000, 19000)]
    assert [one.begin for one in found.messages(0)["w"] if one.name == "negotiation"] == [7000, 17000]


def test_rank_without_records_of_messages_gave_them_when_it_began_to_wait():
    messages = [sent(8), sent(18)]
    add_given(messages, [RankSteps(0, "", [step(5, 0, None), step(6, 10, None)])])
    assert [message.given for message in messages] == [{0: 7 * MS}, {0: 17 * MS}]


@pytest.mark.parametrize(
    "messages",
    [
        [sent(8, 30), sent(9, 10), sent(9, 40)],  # they overlap
        [sent(8, _0=20), sent(18, _0=-50, _1=100)],  # given after the allreduce, or long before
        [sent(-100, 500)],
        [Message("w", 5, 10 * MS, 11 * MS, {}, [("a", 0, 50 * MS), ("b", 9 * MS, 10 * MS), ("c", 1 << 60, 1 << 61)])],
    ],
)
def test_spans_never_overlap(tmp_path, messages):
    """As times of Horovod or clocks of hosts may be wrong."""
    written(tmp_path, ranks(), messages, {})


def test_names_of_any_kind(tmp_path):
    name = 'a"b\\</script>\n\x00\ud800'
    message = sent(8)
    message.name = name
    found = written(tmp_path, [RankSteps(0, name, [step(5, 0)])], [message], {})
    assert found.processes[0] == f"rank 0 ({name})"
    assert name in found.messages(0)
    without_steps = written(tmp_path, [RankSteps(0, "", [])], [], {})
    assert without_steps.processes == {0: "rank 0"} and not without_steps.main(0)
