"""Who trains together, and how gradients are combined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.interfaces.combining import Combiner, Mean
from hvdtrain.system.membership import Membership


class Group:
    """The processes of a job, seen from one of them; exchanges values in host memory. By itself one process, alone.

    `sum`, `exchange`, `gather`, `broadcast`, `broadcast_bytes` and `close` are collectives: every rank calls them in
    the same order. They raise TrainingError or a framework's error if another rank is lost.
    """

    rank, size, local_rank = 0, 1, 0
    """This process's number in the group, the number of processes, and the rank among those on this host."""
    controller = ""
    """What connects Horovod's processes, `Gloo` or `MPI`; empty for groups without Horovod."""
    survives = False
    """Whether training continues with other members where some are lost, or join; the others' stay the same."""
    membership: Membership | None = None
    """The present members, of a group that survives."""
    known_membership = 0
    """The number of the newest membership that this process knows; always 0 where members stay the same."""
    agreed_membership = 0
    """That of the newest one that all ranks know, by the reports of the last step in shards."""

    @property
    def ranks(self) -> Sequence[int]:
        """The processes' ranks by position in the group, as the launcher numbers them."""
        return range(self.size)

    @property
    def place(self) -> int:
        """This process's rank, as the launcher numbers it."""
        return self.rank

    @property
    def communicate_s(self) -> float | None:
        """Seconds so far in which this rank waited for sums over all ranks: of gradients, from a step's last gradient
        until all are combined, and each sum that is needed at once, as for batch normalization.

        Transfer, and waiting for other ranks. 0 in one process; None where it cannot be told. Any thread may read it.
        """
        return 0.0

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Element-wise sum over all ranks of a float64 vector of shape (n,), which it may overwrite."""
        return values

    def exchange(self, name: str, vector: np.ndarray, counts: list[int], lengths: list[int]) -> np.ndarray:
        """Send each rank its part of a vector; returns what the ranks send to this one, in their order.

        name: of what is exchanged, the same on all ranks. vector: float64 or uint8. counts: how many of its elements go
        to each rank. lengths: how many come from each rank. The caller may change what is returned.
        """
        return vector

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, ordered by rank, on every rank."""
        return [value]

    def broadcast(self, value: Any, root: int = 0) -> Any:
        """The small value of rank `root`, on every rank."""
        # Not by a library's own: that of Horovod for MXNet returns on rank 0 before it is complete, so that a second
        # call with the same name hangs.
        return self.gather(value if self.rank == root else None)[root]

    def broadcast_bytes(self, values: np.ndarray, root: int) -> None:
        """Replace `values` by those of rank `root`: uint8 (n,), contiguous, the same n on every rank.

        For arrays, which `collectives.arrays` cuts into messages; `broadcast` is for small values.
        """

    def close(self) -> None:
        """Leave the job in order."""

    def abort(self) -> None:
        """Cut all connections to the others, from any thread: a collective that waits fails at once."""

    def disconnect(self) -> None:
        """Free what the group has, after `abort`, without waiting for other ranks."""


class Strategy:
    """How the gradients of ranks or devices are combined.

    Each framework derives from it a base class with the hooks that its learner calls, and from that one class per
    strategy. The first line of a strategy's docstring is its line in `--strategy help`.
    """

    requires: ClassVar[tuple[str, ...]] = ()
    """Modules that the strategy imports besides its framework."""
    conversions: ClassVar[tuple[Callable[[Any], Any], ...]] = ()
    """With Horovod: of a vector on the host to the framework, and back."""
    takes_optimizer: ClassVar[bool] = False
    """Whether it trains with the optimizer that a task brings."""
    many_devices: ClassVar[bool] = False
    """Whether one process can train on several devices."""
    sums_shards: ClassVar[bool] = False
    """Whether the group sums the gradients of shards (--shards), and the strategy leaves them alone then."""
    state_by_rank: bool = False
    """See `Learner.state_by_rank`."""
    mean: Mean | None = None
    """What combines weights, with --sync-every."""
    make_combiner: Callable[..., Combiner] | None = None
    """Makes what combines gradients on the host, from config, group and shapes; None where nothing there does."""

    def __init__(self, config: Config, runtime: RuntimeOptions, group: Group, devices: int = 1) -> None:
        """group: the processes that train together. devices: copies of the network in this process."""
        self.config = config
        self.runtime = runtime
        self.group = group
        self.devices = devices
