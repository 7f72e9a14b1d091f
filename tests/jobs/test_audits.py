"""--audit: a rank that computes wrong bits is found and named, and audits change no bit of a sound run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.jobs import PROGRAMS, ROOT, launcher, run, train
from support.same_bits import numbers, weights_hash
from support.stack import FASTEST, cases

from hvdtrain.runs import metrics

BAD_STEP = 5
OPTIONS = ("--strategy", "ring", "--shards", "5", "--epochs", "1", "--max-steps", "14", "--log-every", "3")
OPTIONS += ("--device", "cpu", "--lr", "0.02")
FRAMEWORKS = ["torch", "mxnet", "tensorflow"]


def records(folder: Path, kind: str) -> list[dict]:
    return [record for record in metrics.read(folder / "metrics.jsonl") if record["kind"] == kind]


def flipped(folder: Path, program: str, framework: str, ranks: int) -> tuple[str, dict]:
    """The launcher's last words about a job with a rank 1 that computes wrong bits, and the record of the audit."""
    command = [*launcher("local", ranks), "python", str(PROGRAMS), program, framework, *OPTIONS]
    status, output = run([*command, "--audit", "1", "--name", "run"], folder)
    assert status == 1, output
    assert "1 bit flipped" in output
    (record,) = records(folder / "runs" / "run", "audit")
    (found,) = re.findall(r"hvdtrain: (.*shard \d of step \d+,.*)", output)
    return found, record


@pytest.mark.guarantee("wrong-bits")
@pytest.mark.parametrize("framework", cases(FRAMEWORKS, {FASTEST}))
def test_others_name_a_rank_that_is_wrong_again_and_again(tmp_path, framework):
    found, record = flipped(tmp_path, "flip_from", framework, 3)
    assert re.match(r"rank 1 on \S+ computed wrong bits .* and again at a second try", found)
    assert record["wrong"] == 1 and record["step"] >= BAD_STEP and 1 in (record["rank"], record["by"])


@pytest.mark.guarantee("wrong-bits")
def test_of_two_ranks_the_one_that_was_wrong_once_is_named(tmp_path):
    found, record = flipped(tmp_path, "flip", FASTEST, 2)
    assert re.match(r"rank 1 on \S+ computed wrong bits .* and the right ones at a second try", found)
    assert (record["wrong"], record["step"]) == (1, BAD_STEP)


def test_of_two_ranks_that_stay_at_their_results_both_are_named(tmp_path):
    found, record = flipped(tmp_path, "flip_from", FASTEST, 2)
    assert re.match(r"rank [01] on \S+ and rank [01] on \S+ computed other bits .* cannot be told", found)
    assert (record["wrong"], record["step"]) == (None, BAD_STEP)


@pytest.mark.guarantee("wrong-bits")
@pytest.mark.parametrize("framework", cases(FRAMEWORKS, {FASTEST}))
def test_audits_change_no_bits(tmp_path, framework):
    """Also with a last batch that leaves shards without rows."""
    task = ("--model", str(ROOT / "tests" / "support" / "tasks" / f"of_{framework}.py:Classifier"))
    options = (*OPTIONS, *task, "--batch-size", "36")
    plain = train(tmp_path, framework, *options, "--name", "plain", by="local", np=3)
    audited = train(tmp_path, framework, *options, "--name", "audited", "--audit", "1", by="local", np=3)
    assert weights_hash(audited) == weights_hash(plain)
    assert [record for record in numbers(audited) if record["kind"] != "audited"] == numbers(plain)
    last = records(audited, "audited")[-1]
    assert (last["audits"], last["unequal"]) == (last["step"], 0)


@pytest.mark.parametrize("once", [True, False])
def test_a_loop_of_a_script_computes_the_shard_again_in_one_more_turn(tmp_path, once):
    script = str(ROOT / "tests" / "support" / "flipped_loop.py")
    options = ("--epochs", "2", "--batch-size", "20", "--shards", "5", "--device", "cpu", "--strategy", "ring")
    command = [*launcher("local", 3), "python", script, *options, "--audit", "1", "--name", "run"]
    environment = {"FLIP_ONCE": "1"} if once else {}
    status, output = run(command, tmp_path, **environment)
    if "1 bit flipped" in output and status == 0:  # in a step whose audit had no shard of rank 1
        assert once
        return
    assert status == 1, output
    assert re.search(
        r"hvdtrain: rank 1 on \S+ computed wrong bits for shard \d of step \d+, and (again|the right)", output
    )


@pytest.mark.guarantee("wrong-bits")
@pytest.mark.parametrize("framework", cases(FRAMEWORKS, {FASTEST}))
def test_others_go_on_without_a_rank_that_is_wrong_and_end_with_the_bits_of_a_sound_run(tmp_path, framework):
    sound = train(tmp_path, framework, *OPTIONS, "--name", "sound", by="local", np=2)
    command = [*launcher("local", 3)[:-1], "--survive", "--", "python", str(PROGRAMS), "flip_from", framework, *OPTIONS]
    status, output = run([*command, "--audit", "1", "--on-wrong-bits", "exclude", "--name", "run"], tmp_path)
    assert status == 0, output
    assert re.search(
        r"rank 1 on \S+ computed wrong bits for shard \d of step \d+, and again .*; 2 ranks continue", output
    )
    assert weights_hash(tmp_path / "runs" / "run") == weights_hash(sound)
    (record,) = records(tmp_path / "runs" / "run", "audit")
    assert record["wrong"] == 1
    members = records(tmp_path / "runs" / "run", "members")[-1]
    assert members["ranks"] == [0, 2] and [one["rank"] for one in members["lost"]] == [1]


@pytest.mark.guarantee("wrong-bits")
def test_the_loop_of_a_script_goes_on_without_a_rank_that_is_wrong(tmp_path):
    """Over Horovod; the sound run has the ring."""
    script, options = ROOT / "tests" / "support", ("--epochs", "2", "--batch-size", "20", "--shards", "5")
    options += ("--device", "cpu", "--name")
    command = [*launcher("local", 2), "python", str(script / "user_loop.py"), "--strategy", "ring", *options, "sound"]
    status, output = run(command, tmp_path)
    assert status == 0, output
    command = [
        *launcher("local", 3)[:-1],
        "--survive",
        "--",
        "python",
        str(script / "flipped_loop.py"),
        *options,
        "run",
    ]
    status, output = run([*command, "--audit", "1", "--on-wrong-bits", "exclude", "--strategy", "horovod"], tmp_path)
    assert status == 0, output
    assert "rank 1" in output and "2 ranks continue" in output
    assert weights_hash(tmp_path / "runs" / "run") == weights_hash(tmp_path / "runs" / "sound")


def test_exclude_needs_a_job_that_survives(tmp_path):
    command = [*launcher("local", 2), "python", "-m", "hvdtrain", "train", *OPTIONS]
    status, output = run([*command, "--audit", "5", "--on-wrong-bits", "exclude"], tmp_path)
    assert status == 2, output
    assert "--on-wrong-bits exclude: this job ends when a rank is lost" in output
