"""What trackers are told of a run: its id and options without secrets, and which records are repeated."""

import json

import pytest

from hvdtrain.errors import RankRemoved, Stopped, TrainingError, UserError
from hvdtrain.runs.trackers import registry, tracking
from hvdtrain.runs.trackers.tracking import Tracking

CONTENT = {
    "id": "0123456789abcdef",
    "config": {"data": "https://user:word@host/data", "lr": 0.1},
    "runtime": {"on_end": "curl https://host/hook", "name": "run"},
}


class Told:
    calls: list = []  # noqa: RUF012

    def start(self, *given):
        self.calls.append(given)

    log = end = start


@pytest.fixture
def told(monkeypatch):
    monkeypatch.setattr(registry, "load", lambda name: Told)
    monkeypatch.setattr(Told, "calls", [])
    return Told.calls


def test_records_that_the_run_had_are_marked_by_their_epoch(tmp_path, told):
    lines = [("train", 5, 1.0), ("train", 10, 2.0), ("test", 10, 2.0), ("train", 4, 1.5)]
    text = "".join(json.dumps({"kind": kind, "step": step, "epoch": epoch}) + "\n" for kind, step, epoch in lines)
    (tmp_path / "metrics.jsonl").write_text(text + '{"kind": "tr')
    followed = Tracking(["own"], tmp_path, CONTENT, 4)
    with followed.until_end(elastic=False):
        for kind, step, epoch in [("train", 4, 1.5), ("train", 6, 2.0), ("test", 6, 2.0), ("test", 9, 3.0)]:
            followed.log({"kind": kind, "step": step, "epoch": epoch})
        followed.log({"kind": "ranks", "step": 1, "evaluation_s": [1.0, 2.0]})
    (run_id, config), *logged, ended = told
    assert run_id == CONTENT["id"]
    assert config == {
        **CONTENT,
        "config": {"data": "https://host/data", "lr": 0.1},
        "runtime": {"name": "run"},
        "folder": str(tmp_path),
        "step": 4,
    }
    assert [one["repeated"] for (one,) in logged] == [True, False, True, False, False]
    assert ended == ("finished",)


@pytest.mark.parametrize(
    ("error", "elastic", "status"),
    [
        (Stopped("asked to stop"), False, "stopped"),
        (KeyboardInterrupt(), False, "stopped"),
        (TrainingError("not finite"), True, "failed"),
        (RuntimeError("lost a rank"), False, "failed"),
        (RuntimeError("lost a rank"), True, "stopped"),
        (RankRemoved("the job continues"), True, "stopped"),
    ],
)
def test_how_a_run_ended(tmp_path, told, error, elastic, status):
    followed = Tracking(["own"], tmp_path, CONTENT, 0)
    with pytest.raises(type(error)), followed.until_end(elastic):
        raise error
    assert told[-1] == (status,)


def test_an_unknown_tracker_names_those_that_are_installed():
    with pytest.raises(UserError) as raised:
        registry.check(["tensorbord"])
    assert raised.value.reason == "--tracker tensorbord: no such tracker (did you mean tensorboard?)"
    assert raised.value.remedy.startswith("choose from mlflow, prometheus, tensorboard, wandb")


def test_a_tracker_whose_library_is_missing(monkeypatch):
    monkeypatch.setenv(*registry.EXTRAS["mlflow"])
    monkeypatch.setitem(registry.OWN, "mlflow", "no_such_library:MLflow")
    with pytest.raises(UserError, match=r"no_such_library.*; pip install 'hvdtrain\[mlflow\]'"):
        registry.check(["mlflow"])


def test_names_are_checked_where_rank_0_runs_only(monkeypatch):
    from hvdtrain.config.options import RuntimeOptions
    from hvdtrain.training.train import check_trackers

    check_trackers(RuntimeOptions())
    with pytest.raises(UserError, match="no such tracker"):
        check_trackers(RuntimeOptions(tracker=("tensorboard", "other")))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    check_trackers(RuntimeOptions(tracker=("other",)))


def test_short_form_of_tensorboard():
    from hvdtrain.config.options import RuntimeOptions

    assert RuntimeOptions(tracker=("wandb", "tensorboard", "wandb"), tensorboard=True).trackers == (
        "wandb",
        "tensorboard",
    )
    assert RuntimeOptions(tensorboard=True).trackers == ("tensorboard",)


def test_end_waits_for_all_trackers_together(tmp_path, monkeypatch, told):
    import threading
    import time

    released = threading.Event()
    monkeypatch.setattr(Told, "log", lambda *_: released.wait())
    monkeypatch.setattr(tracking, "END_S", 0.3)
    followed, began = Tracking(["one", "two", "three"], tmp_path, CONTENT, 0), time.monotonic()
    with followed.until_end(elastic=False):
        followed.log({"kind": "train", "step": 1})
    assert 0.3 <= time.monotonic() - began < 3
    released.set()
