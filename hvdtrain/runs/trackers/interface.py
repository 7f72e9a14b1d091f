"""What a tracker is: it shows or stores the records of runs, in addition to their folders."""

from __future__ import annotations

from typing import Any, Protocol


class Tracker(Protocol):
    """Receives a run's records on rank 0, in a thread of its own; packages name theirs as an entry point.

    It is made without arguments. What one of its methods raises is logged once, and costs the records of that call.
    """

    def start(self, run_id: str, config: dict[str, Any]) -> None:
        """A run starts, or is resumed: a run that is resumed in its folder has the same id again.

        run_id: 16 hexadecimal digits. config: the content of the run's config.json, and in addition `folder`, the
        absolute path of the run's folder, and `step`, the number of steps that are done.
        """

    def log(self, record: dict[str, Any]) -> None:
        """A record of metrics.jsonl, with `repeated`: whether the run had it before it was resumed.

        `kind` is train, test or ranks, and `step` the number of steps done; the other values are numbers, or lists with
        a number for each rank.
        """

    def end(self, status: str) -> None:
        """The run has finished, was stopped, or has failed: `finished`, `stopped` or `failed`.

        A run whose process is killed does not call this.
        """
