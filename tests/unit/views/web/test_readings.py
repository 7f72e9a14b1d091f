"""What the server of the page reads, and how seldom."""

import os
import time

from support.live_runs import make_run, records

from hvdtrain.runs.rank_times import RankTimes
from hvdtrain.runs.step_times import StepSeconds
from hvdtrain.system.run_end import Failure, RunEnd
from hvdtrain.views.web import listing
from hvdtrain.views.web.curves import MAX_POINTS, CurveStore, spread

FINISHED = RunEnd("finished", time=1.0)


def make_old(folder):
    """Let all files look as if they were written an hour ago."""
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (time.time() - 3600,) * 2)


def test_runs_that_are_over_are_read_once(tmp_path, monkeypatch):
    for name in ("one", "other"):
        make_old(make_run(tmp_path / name, 3, FINISHED))
    make_run(tmp_path / "recent", 3, FINISHED)
    looks, look = [], listing.RunFollower.look
    monkeypatch.setattr(listing.RunFollower, "look", lambda self: (looks.append(self.folder.name), look(self))[1])
    monkeypatch.setattr(listing, "READ_EVERY_S", 0)
    monkeypatch.setattr(listing, "SHARE", 1)
    found = listing.Listing([tmp_path])
    for _ in range(3):
        version = found.changes(0)["version"]
    assert sorted(looks) == ["one", "other", "recent", "recent", "recent"]
    RunEnd("failed", 1, Failure("again")).write(tmp_path / "one")
    assert [run["reason"] for run in found.changes(version)["runs"]] == ["again"]


def test_a_slow_folder_is_read_for_a_fifth_of_the_time(tmp_path, monkeypatch):
    make_run(tmp_path / "run", 3)
    looks, look = [], listing.RunFollower.look

    def slow_look(self):
        looks.append(time.monotonic())
        time.sleep(0.2)
        return look(self)

    monkeypatch.setattr(listing.RunFollower, "look", slow_look)
    monkeypatch.setattr(listing, "READ_EVERY_S", 0)
    found = listing.Listing([tmp_path])
    while len(looks) < 2:
        found.changes(0)
    assert looks[1] - looks[0] >= 5 * 0.2


def test_curves_are_thinned_without_losing_peaks_and_grow_with_the_file(tmp_path):
    folder, lines = make_run(tmp_path / "run", 3), records(3000)
    metrics = folder / "metrics.jsonl"
    metrics.write_text("\n".join(lines[:2000]) + "\n" + '{"kind":"train","step":1,"epoch":99,"loss":77.5}\n')
    store = CurveStore()
    loss = store.curves(folder, False)["curves"]["loss"]
    assert len(loss["values"]) <= MAX_POINTS + 2 and max(loss["values"]) == 77.5
    with open(metrics, "a") as file:
        file.write('{"kind":"train","step":1,"epoch":99.5,"loss":88.5}\n{"kind":"train","step":2,"epoch"')
    assert store.curves(folder, True)["curves"]["loss"]["values"][-1] == 88.5
    metrics.unlink()
    nothing = {"summary": "", "last": []}
    assert store.curves(folder, True) == {"curves": {}, "spread": None, "changes": nothing}


def interval(local, communicate=True, gone=()):
    """One logging step with these times of the ranks."""
    waits = [max(local) - seconds if communicate else None for seconds in local]
    times = [StepSeconds(seconds, wait, 0.0) for seconds, wait in zip(local, waits, strict=True)]
    return RankTimes(1, 1.0, {rank: time for rank, time in enumerate(times) if rank not in gone})


def test_spread_shows_few_ranks_all_and_of_many_the_slowest():
    few = spread([interval([1.0, 1.0, 1.5, 1.0])] * 4)
    assert [line["rank"] for line in few["lines"]] == [0, 1, 2, 3] and few["greatest"] == [1.5] * 4
    many = spread([interval([1.0] * 50 + [2.0] + [1.0] * 49 + [1.2])] * 1000)
    assert {50, 100} < {line["rank"] for line in many["lines"]} and len(many["lines"]) == 3
    assert len(many["steps"]) == 240 and many["knows_waiting"]
    assert not spread([interval([1.0, 1.0], communicate=False)])["knows_waiting"]


def test_spread_of_what_cannot_be_compared_is_none():
    for intervals in ([], [interval([1.0])], [interval([1e300, 1.0])]):
        assert spread(intervals) is None
    assert spread([interval([0.0, 0.0])])["greatest"] == [1.0]


def test_ranks_that_left_have_a_gap_in_their_lines():
    found = spread([interval([1.0, 1.0]), interval([1.0, 9.0, 2.0], gone=[1]), interval([1.0, 1.0, 1.0])])
    assert [line["values"] for line in found["lines"]] == [[1.0, 0.6667, 1.0], [1.0, None, 1.0], [None, 1.3333, 1.0]]
    assert (found["least"], found["greatest"]) == ([1.0, 0.6667, 1.0], [1.0, 1.3333, 1.0])
    assert spread([interval([1.0] * 9, gone=range(9 - at)) for at in (1, 9)])["ranks"] == 9
