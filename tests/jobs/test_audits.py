"""--audit: a rank that computes wrong bits is found and named, and audits change no bit of a sound run.

Each test needs ranks in processes: the launcher says who was wrong, and a job goes on without that rank.
"""

import re

import pytest
from support.jobs import PROGRAMS, ROOT, launch, launcher, records, run, succeed, train_several
from support.same_bits import numbers, weights_hash
from support.stack import FASTEST, FRAMEWORKS, cases

SUPPORT = ROOT / "tests" / "support"
OPTIONS = ("--shards", "5", "--epochs", "1", "--max-steps", "14", "--log-every", "3", "--device", "cpu", "--lr", "0.02")
SCRIPT = ("--epochs", "2", "--batch-size", "20", "--shards", "5", "--device", "cpu")
EXCLUDE = ("--audit", "1", "--on-wrong-bits", "exclude", "--name", "run")
SURVIVING = launch("local", 3, "--survive")
WRONG = r"hvdtrain: rank 1 on \S+ computed wrong bits for shard \d of step \d+, "


@pytest.mark.guarantee("wrong-bits")
@pytest.mark.parametrize(
    ("program", "ranks", "says", "wrong"),
    [
        ("flip_from", 3, WRONG + "and again at a second try", 1),
        ("flip", 2, WRONG + "and the right ones at a second try", 1),
        ("flip_from", 2, r"rank [01] on \S+ and rank [01] on \S+ computed different bits .* cannot be told", None),
    ],
    ids=["again and again", "once", "one of two"],
)
@pytest.mark.parametrize("framework", cases(["numpy", *FRAMEWORKS], {"numpy"}))
def test_a_rank_that_is_wrong_is_named(tmp_path, framework, program, ranks, says, wrong):
    command = [*launcher("local", ranks), "python", str(PROGRAMS), program, framework, "--strategy", "ring", *OPTIONS]
    status, output = run([*command, "--audit", "1", "--name", "run"], tmp_path)
    assert status == 1 and "1 bit flipped" in output and re.search(says, output), output
    (record,) = records(tmp_path / "runs" / "run", "audit")
    assert record["wrong"] == wrong and 1 in (record["rank"], record["by"])
    assert record["step"] == 5 or (ranks == 3 and record["step"] > 5)


@pytest.mark.guarantee("wrong-bits")
@pytest.mark.parametrize("framework", cases(FRAMEWORKS, {FASTEST}))
def test_audits_change_no_bits(tmp_path, framework):
    """Also with dropout, and a last batch that leaves shards without rows."""
    options = ("--strategy", "ring", *OPTIONS, "--model", f"{SUPPORT / 'tasks'}/of_{framework}.py:Classifier")
    options += ("--batch-size", "36")
    runs = {"plain": options, "audited": (*options, "--audit", "1")}
    folder = train_several(tmp_path, framework, runs, "local", 3)
    plain, audited = folder / "plain", folder / "audited"
    assert weights_hash(audited) == weights_hash(plain)
    assert [record for record in numbers(audited) if record["kind"] != "audited"] == numbers(plain)
    last = records(audited, "audited")[-1]
    assert (last["audits"], last["unequal"]) == (last["step"], 0)


@pytest.mark.guarantee("wrong-bits")
@pytest.mark.parametrize("framework", cases(["numpy", *FRAMEWORKS], {"numpy"}))
def test_others_go_on_without_a_rank_that_is_wrong_and_end_with_the_bits_of_a_sound_run(tmp_path, framework):
    folder = train_several(tmp_path, framework, {"sound": ("--strategy", "single", *OPTIONS)}, "alone", 1)
    command = [*SURVIVING, "python", str(PROGRAMS), "flip_from", framework, "--strategy", "ring", *OPTIONS, *EXCLUDE]
    status, output = run(command, tmp_path)
    assert status == 0 and re.search(WRONG + "and again .*; 2 ranks continue", output), output
    assert weights_hash(folder / "run") == weights_hash(folder / "sound")
    (record,) = records(folder / "run", "audit")
    assert record["wrong"] == 1
    members = records(folder / "run", "members")[-1]
    assert members["ranks"] == [0, 2] and [one["rank"] for one in members["lost"]] == [1]


@pytest.mark.guarantee("wrong-bits")
def test_the_loop_of_a_script_computes_the_shard_again_and_goes_on_without_a_rank_that_is_wrong(tmp_path):
    """Over Horovod; the sound run is of one process."""
    loop = str(SUPPORT / "user_loop.py")
    sound = ["python", loop, *SCRIPT, "--strategy", "single", "--name", "sound"]
    command = [*SURVIVING, "python", str(PROGRAMS), "flip_from", loop, *SCRIPT, "--strategy", "horovod", *EXCLUDE]
    for words in (sound, command):
        output = succeed(words, tmp_path)
    assert re.search(WRONG + "and again .*; 2 ranks continue", output), output
    assert weights_hash(tmp_path / "runs" / "run") == weights_hash(tmp_path / "runs" / "sound")


def test_exclude_needs_a_job_that_survives(tmp_path):
    command = ["python", str(PROGRAMS), "several", "numpy", "--strategy", "ring", "--shards", "2", *EXCLUDE]
    status, output = run(command, tmp_path)
    assert status != 0 and "--on-wrong-bits exclude: this job ends when a rank is lost" in output
