"""A program of a job that survives: it says that it is ready, and prints the memberships that it gets.

usage: python survivor.py [FOLDER]: ends when FOLDER/end exists. It says what FOLDER/say-RANK holds, once.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from pathlib import Path

import msgspec

from hvdtrain.jobs import protocol
from hvdtrain.system import agent_pipe, rank_info
from hvdtrain.system.membership import Membership


def say(stage: str, number: int = 0) -> None:
    agent_pipe.send(agent_pipe.Reached(stage, number))


def main(folder: Path) -> None:
    rank = rank_info.detect().rank
    pipe = agent_pipe.rank_end()
    print("pid", os.getpid(), flush=True)
    say(agent_pipe.READY)
    said = folder / f"say-{rank}"
    while not (folder / "end").exists():
        if select.select([pipe], [], [], 0.02)[0]:
            made = msgspec.convert(json.loads(pipe.recv(agent_pipe.PACKET_BYTES)), Membership, str_keys=True)
            print("member", made.number, list(made.ranks), made.lost, flush=True)
            say(agent_pipe.HEARD, made.number)
            say(agent_pipe.TRAINS, made.number)
        if said.exists():
            message = protocol.parse(json.loads(said.read_text()))
            said.unlink()
            agent_pipe.send(message)
            if isinstance(message, agent_pipe.Failure):
                sys.exit(1)
        time.sleep(0.01)


main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
