"""The id of a run: kept when it is resumed in its folder, new in a new folder, and what is recorded beside it."""

import json
import re

import pytest
from support.fake_learner import numbered, use_fakes

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.training.train import train


@pytest.fixture
def train_once(tmp_path, monkeypatch):
    use_fakes(monkeypatch, numbered(8))

    def train_with(name, steps, **options):
        runtime = RuntimeOptions(runs=tmp_path, name=name, quiet=True, **options)
        train(Config(batch_size=4, epochs=9, max_steps=steps), runtime, lambda: [])
        return json.loads((tmp_path / name / "config.json").read_text())

    return train_with


def test_a_run_that_is_resumed_in_its_folder_keeps_its_id(tmp_path, train_once):
    first = train_once("run", 2, auto_resume=True)["id"]
    assert re.fullmatch("[0-9a-f]{16}", first)
    assert train_once("run", 4, auto_resume=True)["id"] == first
    assert train_once("other", 4, resume=tmp_path / "run")["id"] != first


@pytest.mark.parametrize("value", ["0123", "0123456789ABCDEF", 5, None, {"a": 1}])
def test_an_id_that_is_none_is_replaced(tmp_path, train_once, value):
    record = train_once("run", 2, auto_resume=True)
    (tmp_path / "run" / "config.json").write_text(json.dumps({**record, "id": value}))
    assert re.fullmatch("[0-9a-f]{16}", train_once("run", 4, auto_resume=True)["id"])


def test_a_command_with_credentials_is_not_recorded(train_once):
    assert train_once("run", 2, on_end="mail me")["runtime"]["on_end"] == "mail me"
    assert train_once("other", 2, on_end="curl https://me:word@host/")["runtime"]["on_end"] == "..."
