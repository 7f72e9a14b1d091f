"""Reading Horovod's own timeline: complete, cut off anywhere, and with hostile content."""

import json

import pytest

from hvdtrain.runs.timeline.horovod_events import HorovodFile, events, message_name, messages

TENSORS = ("grouped_allreduce.conv1.weight_1of2", "grouped_allreduce.conv1.weight_2of2", "hvdtrain.sum.5")


def named(pid, name):
    return [
        {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}},
        {"name": "process_sort_index", "ph": "M", "pid": pid, "args": {"sort_index": pid}},
    ]


def allreduce(pid, at, *ready, negotiation=100, length=50):
    """The events of one allreduce, whose negotiation begins at `at` (us)."""
    begin = at + negotiation
    return [
        {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": at, "pid": pid},
        *({"ph": "X", "name": str(rank), "ts": at + own, "pid": pid, "dur": 0} for rank, own in enumerate(ready)),
        {"ph": "E", "ts": begin, "pid": pid},
        {"ph": "B", "name": "ALLREDUCE", "ts": begin, "pid": pid},
        {"ph": "B", "name": "GLOO_ALLREDUCE", "ts": begin + 10, "pid": pid},
        {"ph": "E", "ts": begin + length - 10, "pid": pid},
        {"ph": "E", "ts": begin + length, "pid": pid, "args": {"dtype": "float32", "shape": "[10]"}},
    ]


START = {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 5_000_000}}
EVENTS = [
    START,
    *named(1, TENSORS[0]), *named(2, TENSORS[1]), *named(3, TENSORS[2]),
    *allreduce(3, 0),
    *allreduce(1, 1000, 0, 90), *allreduce(2, 1002, 0, 91),
    *allreduce(1, 2000), *allreduce(2, 2002),
]  # fmt: skip


def text(found):
    """As Horovod writes it: a comma after each event, and a bracket in the end."""
    return "[\n" + "".join(json.dumps(one) + (",\n" if one["ph"] == "M" else ",") for one in found)[:-1] + "]"


def test_tensors_of_a_group_are_one_message():
    first, second, third = messages(events(text(EVENTS)), 1_000_000)
    assert (first.name, second.name, third.name) == ("hvdtrain.sum.5", "conv1.weight", "conv1.weight")
    assert (second.negotiation, second.begin, second.end) == (2_000_000, 2_100_000, 2_152_000)
    assert second.given == {0: 2_002_000, 1: 2_093_000}  # both tensors are ready
    assert second.activities == [("GLOO_ALLREDUCE", 2_110_000, 2_142_000)]
    assert third.given == {}


@pytest.mark.parametrize(
    ("tensor", "name"),
    [
        ("grouped_allreduce.dense.weight_2of14", "dense.weight"),
        ("allreduce.dense.weight", "dense.weight"),
        ("horovod_grouped_allreduce.a:b_1of2", "a:b"),
        ("x/cond/then/_0/y/HorovodGroupedAllreduce_conv1_kernel_0_dense_bias_0_3of4", "conv1_kernel_0_dense_bias_0"),
        ("HorovodAllreduce", "HorovodAllreduce"),
        ("", ""),
    ],
)
def test_message_is_named_after_its_gradients(tensor, name):
    assert message_name(tensor) == name


def test_file_cut_off_anywhere_gives_the_messages_before(tmp_path):
    """And none that is not in the complete file."""
    whole, path = text(EVENTS), tmp_path / "horovod.json"
    complete = [(one.name, one.negotiation, one.begin) for one in messages(events(whole), 0)]
    lengths = []
    for length in [*range(0, len(whole), 3), len(whole)]:
        path.write_text(whole[:length])
        found = [(one.name, one.negotiation, one.begin) for one in HorovodFile(path).messages(0)]
        assert set(found) <= set(complete)
        lengths.append(len(found))
    assert lengths[0] == 0
    assert lengths[-1] == 2
    assert lengths == sorted(lengths)


def test_own_allreduces_correct_a_clock_that_was_set(tmp_path):
    path = tmp_path / "horovod.json"
    path.write_text(text(EVENTS))
    file, own = HorovodFile(path), [(7_000_000, 7_400_000)]
    # Its negotiation begins at 0 us, it begins at 100 us and ends at 150 us: Horovod's 0 is from 6.9 to 7.25 ms.
    assert file.start_of_clock(-4_993_000_000, own) == 7_000_000
    assert file.start_of_clock(0, own) == 7_250_000
    assert file.start_of_clock(-(10**12), own) == 6_900_000
    assert file.start_of_clock(0, []) == 5_000_000_000
    path.write_text("")
    assert HorovodFile(path).start_of_clock(0, own) is None


def test_what_is_no_event_is_skipped():
    hostile = [
        '{"ph": "B"}', '{"ph": "B", "pid": [], "ts": 1}', '{"ph": "M", "pid": 1, "args": []}', "{}", "[{", '{"a": {',
        '{"ph": "M", "pid": 1, "args": {"name": 5}}', '{"ph": "E", "pid": 1, "ts": NaN}',
        '{"ph": 1, "pid": 2, "ts": 1}',
        '{"ph": "X", "name": "\u0663", "pid": 1, "ts": 5}', '{"ph": "B", "name": "say "quotes"", "pid": 1, "ts": 3}',
    ]  # fmt: skip
    for one in hostile:
        assert len(messages(events(one + text(EVENTS)), 0)) == 3, one
    assert messages(events(text([*named(1, "a"), *allreduce(1, 1 << 60)])), 0) == []
