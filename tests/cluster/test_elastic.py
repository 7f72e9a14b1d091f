"""Horovod Elastic: ranks are killed, added and removed, and the job ends with the weights of one process."""

from __future__ import annotations

import pytest
from support.elastic import ELASTIC, LAUNCH, Job
from support.jobs import run, wait_for


@pytest.mark.matrix
def test_a_killed_rank_and_a_new_host(tmp_path):
    with Job(tmp_path, "tensorflow", "localhost:1 127.0.0.1:1") as job:
        job.lose_a_rank_and_gain_a_host()
        assert "resumed from runs/run: epoch" in job.end()


def test_a_host_is_removed_and_the_rendezvous_server_listens_on_one_interface(tmp_path):
    with Job(tmp_path, "torch", "localhost:1 127.0.0.1:1", HVDTRAIN_TEST_STEP_S="0.15") as job:
        wait_for(lambda: len(job.workers()) == 2, 60, job.log)
        assert job.listening_addresses() == {"127.0.0.1"}, "the rendezvous server executes what it receives"
        job.lose_a_host()
        output = job.end()
    assert "this host was removed from the job, which continues on the others" in output
    assert "Aborted" not in output


INVALID = [
    (["--elastic", "--interface", "lo"], "give --host-discovery-script FILE, or two or more hosts with -H"),
    (
        ["--elastic", "-H", "localhost:1,127.0.0.1:1"],
        "--elastic needs the interface that its rendezvous server listens on; give --interface NAME",
    ),
    ([*ELASTIC[:3], "--host-discovery-script", "./none.sh"], "none.sh cannot be executed; chmod +x"),
    ([*ELASTIC, "--min-np", "3"], "--min-np 3 --max-np 2: -n 2 is not between them"),
    ([*ELASTIC, "--restarts", "2"], "without --restarts and --time-limit"),
    ([*ELASTIC, "--mpi"], "--elastic works with Gloo only"),
]


@pytest.mark.parametrize(("options", "sentence"), INVALID)
def test_invalid_options(tmp_path, options, sentence):
    (tmp_path / "hosts.sh").touch(0o755)
    status, output = run([*LAUNCH, *options, "--", "python", "-m", "hvdtrain.torch_lenet"], tmp_path)
    assert (status, sentence in output) == (2, True), output


def test_a_public_address_is_rejected(monkeypatch, tmp_path, capsys):
    from hvdtrain.cli import launch
    from hvdtrain.jobs.launchers import horovodrun

    script = tmp_path / "hosts.sh"
    script.touch(0o755)
    words = ["horovodrun", "-n", "2", "--elastic", "--interface", "eth0", "--host-discovery-script", str(script)]
    program = ["--", "python", "-m", "hvdtrain.torch_lenet"]
    monkeypatch.setattr(horovodrun, "address_of", lambda name: {"eth0": "8.8.8.8"}[name])
    with pytest.raises(SystemExit) as end:
        launch.main([*words, "--dry-run", *program])
    assert end.value.code == 2
    assert "--interface eth0: 8.8.8.8 is a public address" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        launch.main([*words, "--dry-run", "--elastic-on-public-address", *program])
    assert end.value.code == 0
    command = capsys.readouterr().out.rstrip()
    assert command.endswith("python -m hvdtrain.torch_lenet") and "HVDTRAIN_ELASTIC=1" in command


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["hvdtrain.torch_lenet"], "an elastic one; start by python -m hvdtrain launch horovodrun --elastic"),
        (["hvdtrain.mxnet_lenet"], "Horovod supports it for PyTorch and TensorFlow"),
        (["hvdtrain.torch_lenet", "--strategy", "ddp"], "launch --restarts N, which restarts all ranks"),
    ],
)
def test_programs_that_cannot_be_elastic(tmp_path, words, sentence):
    status, output = run(["python", "-m", *words, "--elastic"], tmp_path)
    assert (status, sentence in output) == (2, True), output
