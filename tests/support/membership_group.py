"""A rank that connects the groups of memberships over Horovod, as its standard input says.

usage: python membership_group.py FRAMEWORK

A line of JSON is a call: ["connect", membership, position], ["sum", value], ["leave"], or, while one of these waits,
["superseded", number] and ["abort"]. Each of the first three is answered by a line with its result, or with the name of
the error: for "connect" the seconds that the group has communicated, for "sum" the different elements of the sum, the
sum of what is gathered, and what the last rank has sent. Before all of them comes a line when the framework is loaded.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import sys
import threading
from typing import Any

import msgspec
import numpy as np

from hvdtrain.collectives.horovod_membership import MembershipGroup
from hvdtrain.system.membership import Membership

ELEMENTS = 130_000


class Rank:
    def __init__(self, framework: str) -> None:
        self.hvd = importlib.import_module(f"horovod.{framework}")
        self.conversions = conversions(framework)
        self.group: Any = None
        self.newest = 0

    def connect(self, record: list[Any], position: int) -> float | None:
        membership = msgspec.convert(record, Membership, str_keys=True)

        def is_superseded() -> bool:
            return self.newest > membership.number

        self.group = MembershipGroup(self.hvd, *self.conversions, membership, position, is_superseded)
        assert (self.group.rank, self.group.size) == (position, len(membership.members))
        assert self.group.local_rank == membership.members[position].local_rank
        return self.group.communicate_s

    def sum(self, value: float) -> list[float]:
        total = np.unique(self.group.sum(np.full(ELEMENTS, value)))
        gathered = sum(self.group.gather(value))
        raw = np.array([value if self.group.rank == self.group.size - 1 else 0.0])
        self.group.broadcast_bytes(raw.view(np.uint8), self.group.size - 1)
        assert self.group.communicate_s > 0 or self.group.size == 1
        return [*total, gathered, *raw]

    def leave(self) -> None:
        self.group.abort()
        self.group.disconnect()


def conversions(framework: str) -> tuple[Any, Any]:
    if framework == "mxnet":
        import mxnet as mx

        return lambda values: mx.nd.array(values, dtype=values.dtype), mx.nd.NDArray.asnumpy
    if framework == "torch":
        import torch

        return torch.from_numpy, lambda tensor: tensor.numpy()
    import tensorflow as tf

    return tf.constant, lambda tensor: tensor.numpy()


def main(framework: str) -> None:
    rank, calls = Rank(framework), queue.SimpleQueue[list[Any]]()

    def read() -> None:
        for line in sys.stdin:
            name, *arguments = json.loads(line)
            if name == "superseded":
                rank.newest = arguments[0]
            elif name == "abort":
                rank.group.abort()
            else:
                calls.put([name, *arguments])
        os._exit(0)  # Horovod would wait for the other ranks

    threading.Thread(target=read, daemon=True).start()
    print("null", flush=True)
    while True:
        name, *arguments = calls.get()
        try:
            answer = getattr(rank, name)(*arguments)
        except Exception as error:
            answer = type(error).__name__
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
