"""The time of a training step over N ranks, part by part."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import NamedTuple

from hvdtrain.measure.scale.communication import Communication
from hvdtrain.measure.scale.compression import PLAIN, Combining
from hvdtrain.measure.scale.workload import Workload


class StepTime(NamedTuple):
    """Seconds of a step, by what takes them; communication that backward hides is not in it."""

    compute: float
    input: float
    stragglers: float
    packing: float
    """Of what is sent, and unpacking it: see `Combining`."""
    control: float
    latency: float
    transfer: float

    @property
    def seconds(self) -> float:
        return sum(self)


def no_packing(ranks: int) -> float:
    """The seconds of packing where nothing is packed."""
    return 0.0


@dataclass(frozen=True)
class StepModel:
    """A workload on a cluster."""

    workload: Workload
    communication: Communication
    overlap: float
    """Of the communication that backward could hide, the share that it does: 0 to 1."""
    messages: int = 0
    """Messages that the gradients are sent in; 0 for the best number."""
    storage_images_s: float = math.inf
    """Images per second that storage delivers to all hosts together."""
    spread_factor: float = 1.0
    """Multiplies the spread of step times, for ranges."""
    combining: Combining = PLAIN
    packing_s: Callable[[int], float] = no_packing
    """Seconds of a rank to pack and unpack what it sends, by number of ranks."""

    def step(self, ranks: int, rows: float) -> StepTime:
        """The step of `ranks` ranks with `rows` images each; with local steps, the mean of those between two syncs."""
        compute, every = self.workload.compute_s(rows), self.combining.sync_every
        # The mean of that many independent steps spreads less by the root of their number.
        slowest = self.workload.spread * self.spread_factor / math.sqrt(every) * compute * expected_maximum(ranks)
        packing = 0.0 if ranks == 1 or self.combining.is_in_backward else self.packing_s(ranks) / every
        control, latency, transfer = self._exposed(ranks, compute)
        own_input = self.workload.input_row_s * rows
        busy = compute + slowest + packing + control + latency + transfer
        waiting = max(ranks * rows / self.storage_images_s - busy - own_input, 0.0)
        return StepTime(compute, own_input + waiting, slowest, packing, control, latency, transfer)

    def by(self, algorithm: str) -> StepModel:
        """The same job with another allreduce; the strategies `ring` and `mpi` send after backward, Horovod before."""
        communication = self.communication.by(algorithm)
        after = algorithm in ("ring", "mpi") and not communication.coordination
        return replace(self, communication=communication, overlap=0.0 if after else self.overlap)

    def _exposed(self, ranks: int, compute_s: float) -> tuple[float, float, float]:
        """Communication that a step waits for: control, latency, transfer."""
        if ranks == 1:
            return 0.0, 0.0, 0.0
        if not self.combining.is_in_backward:
            return self._after_backward(ranks)
        backward_s = self.workload.backward_share * compute_s
        exposed, parts = min(self._of_messages(ranks, number, backward_s) for number in self._numbers())
        share = exposed / sum(parts) if sum(parts) else 0.0
        return parts[0] * share, parts[1] * share, parts[2] * share

    def _after_backward(self, ranks: int) -> tuple[float, float, float]:
        """Control, latency and transfer of all exchanges one after the other, for each of the steps between them."""
        traffic = self.combining.traffic(self.workload.arrays)
        calls = [self.communication.call(size, ranks) for size in traffic.allreduces]
        if traffic.packed:
            calls.append(self.communication.call(traffic.packed, ranks, packed=True))
        control, latency, transfer = (sum(parts) / self.combining.sync_every for parts in zip(*calls, strict=True))
        return control, latency, transfer

    @property
    def _message_bytes(self) -> int:
        """Bytes of all gradients that are sent during backward."""
        return sum(self.combining.traffic(self.workload.arrays).allreduces)

    def _numbers(self) -> list[int]:
        """Numbers of messages to choose from."""
        if self.messages:
            return [self.messages]
        least = max(math.ceil(self._message_bytes / self.communication.message_bytes), 1)
        most = max(self.workload.tensors, least) if self.overlap else least
        return sorted({least, most, *(2**power for power in range(most.bit_length()) if least <= 2**power <= most)})

    def _of_messages(self, ranks: int, number: int, backward_s: float) -> tuple[float, tuple[float, float, float]]:
        """Seconds that a step waits for equal messages, and what these take: control, latency, transfer.

        Message k of m is ready k / m of backward after its start, and is sent when those before it are. With c
        seconds each, the last is done max(c, m c - (m - 1) / m backward) after backward. That hides as much as can
        be; `overlap` tells how much of it is hidden in fact.
        """
        message = self.communication.call(math.ceil(self._message_bytes / number), ranks)
        parts = (number * message.control, number * message.latency, number * message.transfer)
        total = sum(parts)
        least = max(total / number, total - (number - 1) / number * backward_s)
        return total - self.overlap * (total - least), parts


def expected_maximum(number: int) -> float:
    """Expected maximum of independent values from the standard normal distribution.

    Blom, Statistical Estimates and Transformed Beta-Variables, 1958: the quantile of (N - a) / (N - 2a + 1) with
    a = 0.375; within 0.03 of the true value for any N, and 0 for one.
    """
    return NormalDist().inv_cdf((number - 0.375) / (number + 0.25))
