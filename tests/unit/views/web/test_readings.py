"""What the server of the page reads, and how seldom."""

import os
import time

from support.live_runs import make_run, records

from hvdtrain.system.run_end import Failure, RunEnd
from hvdtrain.views.web import listing
from hvdtrain.views.web.listing import MAX_POINTS, CurveStore

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
        found.values()
    assert sorted(looks) == ["one", "other", "recent", "recent", "recent"]
    RunEnd("failed", 1, Failure("again")).write(tmp_path / "one")
    assert [run["reason"] for run in found.values()["runs"]] == ["again", "", ""]


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
        found.values()
    assert looks[1] - looks[0] >= 5 * 0.2


def test_curves_are_thinned_without_losing_peaks_and_grow_with_the_file(tmp_path):
    folder, lines = make_run(tmp_path / "run", 3), records(3000)
    metrics = folder / "metrics.jsonl"
    metrics.write_text("\n".join(lines[:2000]) + "\n" + '{"kind":"train","step":1,"epoch":99,"loss":77.5}\n')
    store = CurveStore()
    loss = store.curves(folder)["curves"]["loss"]
    assert len(loss["values"]) <= MAX_POINTS + 2 and max(loss["values"]) == 77.5
    with open(metrics, "a") as file:
        file.write('{"kind":"train","step":1,"epoch":99.5,"loss":88.5}\n{"kind":"train","step":2,"epoch"')
    assert store.curves(folder)["curves"]["loss"]["values"][-1] == 88.5
    metrics.unlink()
    nothing = {"summary": "", "last": []}
    assert store.curves(folder) == {"curves": {}, "changes": nothing}
