"""Which checkpoint is the newest or the best, and what becomes of those that training does not continue."""

import json
import shutil
from pathlib import Path

import pytest
from support.untrusted import save_checkpoint

from hvdtrain.errors import UserError
from hvdtrain.interfaces.learner import Position
from hvdtrain.runs import best, checkpoints
from hvdtrain.runs.metrics import MetricsWriter
from hvdtrain.system import checkpoint_folder, run_end
from hvdtrain.system.checkpoint_folder import Entry, entry_of
from hvdtrain.views.run_view import chosen_run


class Run:
    """A run's folder, to which checkpoints are written that differ in their step only."""

    def __init__(self, folder, keep=9):
        folder.mkdir(exist_ok=True)
        self.folder, self.keep = folder, keep

    def save(self, *steps, parent=None, **given):
        """Write checkpoints; the first one continues `parent`, or the newest one."""
        for step in steps:
            position = Position(step=step)
            path = save_checkpoint(self.place, self.keep, parent, position=position, **given)
            parent = entry_of(path)
        return path

    @property
    def place(self):
        return self.folder / "checkpoints"

    def entry(self, step, folder="checkpoints"):
        return entry_of(self.folder / folder / f"step-{step:08d}")

    def names(self, folder="checkpoints"):
        return [path.name.removeprefix("step-").lstrip("0") for path in checkpoint_folder.paths(self.folder / folder)]

    def newest(self):
        """Step of the checkpoint from which the run resumes; the launcher must also know it."""
        found = checkpoints.newest(self.folder)[1].position.step
        assert run_end.newest_checkpoint(self.folder).step == found
        return found

    def damage(self, step, file=checkpoints.FILES[0]):
        path = self.place / f"step-{step:08d}" / file
        path.write_bytes(path.read_bytes()[:-1])


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "run")


@pytest.mark.guarantee("newest-checkpoint")
def test_the_newest_is_the_last_one_written_though_steps_were_renumbered(run):
    run.keep = 2
    for step in (92, 115, 138, 42, 48):
        run.save(step)
        assert run.newest() == step
    assert run.names() == ["42", "48"]


def test_a_branch_that_is_left_is_kept_and_never_resumed(run, caplog):
    run.save(1, 2, 3, 4)
    run.save(3, parent=run.entry(2))
    assert "branch-1 keeps 2 checkpoint(s) that training does not continue" in caplog.text
    assert run.newest() == 3
    # The new step 3 did not take the old one's name: both are there.
    assert (run.names(), run.names("branch-1")) == (["1", "2", "3-2"], ["3", "4"])
    run.save(3, 4, 5, parent=run.entry(2))
    assert (run.newest(), run.names("branch-2")) == (5, ["3-2"])
    shutil.rmtree(checkpoints.newest(run.folder)[0])
    assert run.newest() == 4
    run.save(5, parent=run.entry(4, "branch-1"))
    assert (run.newest(), run.names()) == (5, ["1", "2", "5"])


@pytest.mark.guarantee("damaged-checkpoint")
def test_a_damaged_newest_checkpoint_falls_back_along_the_line(run):
    run.save(1, 2, 3, 4)
    run.save(5, parent=run.entry(2))
    run.damage(5)
    assert run.newest() == 2


@pytest.mark.parametrize("moved", [0, 1])
def test_a_kill_while_a_branch_is_moved(run, monkeypatch, moved):
    run.save(1, 2, 3, 4)
    older = run.entry(2)
    renames = iter(range(9))
    original = type(older.path).rename

    def rename(path, target):
        if path.name.startswith("step-") and next(renames) == moved:
            raise KeyboardInterrupt
        return original(path, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(older.path), "rename", rename)
        run.save(7, parent=older)
    assert run.newest() == 4, "as before the checkpoint was begun"
    run.save(8, parent=older)
    assert run.newest() == 8
    assert run.names() == ["1", "2", "8"]


def test_pruning_keeps_whole_checkpoints_besides_damaged_ones(run):
    run.save(1, 2, 3)
    run.damage(3)
    run.keep = 2
    run.save(4)
    assert run.names() == ["2", "3", "4"]
    run.keep = 1
    run.damage(4, checkpoints.MANIFEST)
    run.save(3, parent=run.entry(2))
    assert run.names() == ["3-2"]
    assert run.newest() == 3


def test_best_names_the_best_whole_checkpoint_of_the_line(run):
    best = run.folder / "best"
    run.save(1, score=0.7)
    run.save(2, score=0.9)
    run.save(3, score=0.8)
    run.save(4)
    assert checkpoints.newest(best)[1].position.step == 2
    run.damage(2)
    assert checkpoints.newest(best)[1].position.step == 3
    run.save(5, parent=run.entry(1))
    assert checkpoints.newest(best)[1].position.step == 1
    best.mkdir()  # a folder of that name is what it is
    with pytest.raises(UserError, match="no intact checkpoint"):
        checkpoints.newest(best)


def test_scores_of_another_figure_are_not_compared(run):
    """A run that is resumed with another --score."""
    run.keep = 1
    run.save(1, score=0.9)
    for step, score in ((2, 0.3), (3, 0.2)):
        run.save(step, score=score, score_choice="max:f1")
    run.save(4)
    assert checkpoints.newest(run.folder / "best")[1].position.step == 2
    assert run.names() == ["2", "4"]


def test_a_new_run_that_continues_another_one(run, tmp_path):
    run.save(1, 2, 3)
    other = Run(tmp_path / "other")
    path = other.save(4, parent=run.entry(3))
    history = json.loads((path / "state.json").read_text())["history"]
    assert history == {"written": 1, "parent": str(run.entry(3).path)}
    other.save(5)
    assert (run.newest(), other.newest(), other.names()) == (3, 5, ["4", "5"])


def test_a_checkpoint_stands_for_its_run_in_commands_about_runs(run, monkeypatch):
    path = run.save(1, score=1.0)
    (run.folder / "config.json").write_text("{}")
    (run.folder / "metrics.jsonl").write_text("")
    assert [chosen_run(place) for place in (run.folder, run.folder / "best", path)] == [run.folder] * 3
    monkeypatch.chdir(path.parent)
    assert chosen_run(Path(path.name)) == run.folder


VALUES = {3: (3.0, 0.2), 6: (1.5, 0.9), 9: (2.0, 0.9)}


@pytest.fixture
def evaluated(tmp_path, monkeypatch):
    """A run with a checkpoint and an evaluation at each of three steps, and a checkpoint within an epoch."""
    (tmp_path / "checkpoints").mkdir()
    known = [Entry(tmp_path / "checkpoints" / f"step-{step}", step, step / 10, step) for step in (3, 6, 7, 9)]
    monkeypatch.setattr(checkpoint_folder, "entries", lambda _: known)
    writer = MetricsWriter(tmp_path)
    for step, (perplexity, hit) in VALUES.items():
        writer.write("test", step, epoch=step / 3, loss=1.0 / step, perplexity=perplexity, hit=hit)
    writer.close()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("best", 9),
        ("best:min:perplexity", 6),
        ("best:max:perplexity", 3),
        ("best:max:hit", 9),  # of equal ones the newest
        ("best:min:loss", 9),
        ("best:max:loss", 3),
    ],
)
def test_by_any_figure(evaluated, name, step):
    assert best.step_of(evaluated / name) == step


def test_a_checkpoint_has_its_own_step_and_a_run_has_none(evaluated):
    (evaluated / "checkpoints" / "step-7").mkdir()
    (evaluated / "checkpoints" / "step-7" / "manifest.json").write_text(json.dumps({}))
    assert best.step_of(evaluated / "checkpoints" / "step-7") == 7
    assert best.step_of(evaluated) is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("best:min:perplexit", "has measured no 'perplexit' (did you mean perplexity?)"),
        ("best:perplexity", "does not say whether the greatest or the least value is the best"),
    ],
)
def test_what_was_not_measured(evaluated, name, reason):
    with pytest.raises(UserError) as raised:
        best.step_of(evaluated / name)
    assert reason in raised.value.reason and raised.value.remedy
    (evaluated / "metrics.jsonl").write_text('{"kind": "test", "step": 5, "epoch": 1, "loss": 1.0}\n')
    with pytest.raises(UserError, match="no evaluation has given a checkpoint"):
        best.step_of(evaluated / "best:min:loss")


def test_a_copy_of_a_run_is_a_run_of_its_own(run, tmp_path):
    run.save(1, 2)
    copy = Run(shutil.copytree(run.folder, tmp_path / "copy"))
    copy.save(3)
    run.save(4, parent=run.entry(1))
    assert (copy.newest(), run.newest()) == (3, 4)
