"""Checkpoints are damaged, or their writer is killed: whole ones remain and are found."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

from support.networks import LENET, LENET_RECORD

from faults.suite import Row, Suite
from faults.watched_job import EVERY
from hvdtrain.interfaces.learner import Checkpoint, Position
from hvdtrain.networks.random_numbers import initial_weights
from hvdtrain.runs import checkpoints
from hvdtrain.system import checkpoint_folder, run_end


def flip(suite: Suite, launcher: str, framework: str) -> Row:
    """A bit of the newest checkpoint flips: the job resumes from the one before it."""
    job = suite.job(launcher, framework)
    job.wait_for_step(3 * EVERY)
    os.kill(job.process.pid, signal.SIGTERM)
    job.end(75)
    newest = checkpoint_folder.entries(job.run / "checkpoints")[-1].path
    victim = newest / suite.random.choice(checkpoints.FILES)
    data = bytearray(victim.read_bytes())
    data[suite.random.randrange(len(data))] ^= 1 << suite.random.randrange(8)
    victim.write_bytes(data)
    suite.check_resumes(job).reported(f"damaged checkpoint: runs/run/checkpoints/{newest.name}", 0, 1)
    return Row(f"a flipped bit in {victim.name}", launcher, framework)


def write(suite: Suite, launcher: str, framework: str) -> Row:
    """kill -9 while checkpoints are written."""
    del launcher, framework
    kills = 1000
    announced = kills_while_writing(suite.new_folder(), kills, suite.random)
    return Row(f"{kills} kills while writing", "", "", None, None, 0, f"all of {announced} checkpoints whole")


def kills_while_writing(folder: Path, kills: int, generator: random.Random) -> int:
    """Kill a process that writes checkpoints, again and again; returns the number of the last checkpoint.

    Each checkpoint that the writer announced must be the newest, or older than the newest, and each one that exists
    must be whole.
    """
    checkpoints_folder = folder / "checkpoints"
    announced = 0
    for _ in range(kills):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            try:
                _write_until_killed(checkpoints_folder, writer)
            finally:
                os._exit(1)
        os.close(writer)
        received = os.read(reader, 4)  # waits for the first checkpoint
        time.sleep(generator.uniform(0, 0.02))  # any moment of a write
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        for path in folder.glob("*/step-*"):
            checkpoints.load(path)
        received += os.read(reader, 1 << 16)
        os.close(reader)
        announced = max(announced, int.from_bytes(received[-4:], "little"))
        newest = checkpoints.newest(folder)[1]
        assert newest.position.epoch >= announced
        assert run_end.newest_checkpoint(folder).step == newest.position.step
    assert announced >= kills
    return announced


def _write_until_killed(folder: Path, pipe: int) -> None:
    """Save checkpoint after checkpoint, and announce the number of each once it is saved."""
    number = checkpoints.newest(folder)[1].position.epoch if checkpoint_folder.paths(folder) else 0
    weights = initial_weights(LENET, "xavier", 1)
    while True:
        number += 1
        position = Position(number, 128, number * 7919 % 1000, 64, 0)  # steps in no order, as if renumbered
        saved = Checkpoint(position, "lenet", LENET_RECORD, "torch", "sgd", "ab12", weights=weights)
        checkpoints.save(folder, saved, 3)
        os.write(pipe, number.to_bytes(4, "little"))
