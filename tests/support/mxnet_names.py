"""Broadcasts and alltoalls in MXNet by ranks that share one core, so that threads often wait in the middle of queueing.

usage: mxnet_names.py COUNT
"""

import os
import sys

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import horovod.mxnet as hvd  # noqa: E402  # its threads inherit the core
import mxnet as mx  # noqa: E402


def main() -> None:
    hvd.init()
    count = int(sys.argv[1])
    sent = mx.nd.full(2 * hvd.size(), hvd.rank())
    of_all = mx.nd.arange(hvd.size(), repeat=2)
    for _ in range(count):
        received = hvd.broadcast_(mx.nd.full(2, hvd.rank()), 1, name="a name that is kept outside of the string object")
        assert (received == 1).asnumpy().all()
        received = hvd.alltoall(sent, name="another name that is kept outside of the string object")
        assert (received == of_all).asnumpy().all()
    print(f"{count} operations were right")
    hvd.shutdown()


if __name__ == "__main__":
    main()
