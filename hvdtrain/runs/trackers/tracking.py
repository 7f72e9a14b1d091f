"""The trackers of a run: what they get, and how the run's end reaches them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hvdtrain.errors import HvdtrainError, RankRemoved, UserError
from hvdtrain.runs import metrics
from hvdtrain.runs.console import log
from hvdtrain.runs.trackers import registry
from hvdtrain.runs.trackers.delivery import Delivery
from hvdtrain.system import credentials
from hvdtrain.system.run_end import RunEnd

END_S = 5.0
"""How long the end of a run waits for all of its trackers."""


class Tracking:
    """Hands a run's records to trackers. Create it before the run's first record is written.

    names: of trackers. folder: the run's. content: of its config.json. step: the number of steps that are done.
    """

    def __init__(self, names: Sequence[str], folder: Path, content: dict[str, Any], step: int) -> None:
        self._deliveries: list[Delivery] = []
        self._recorded = _recorded(folder) if names else {}
        config = {**_public(content), "folder": str(folder.absolute()), "step": step}
        for name in names:
            try:
                self._deliveries.append(Delivery(name, registry.load(name), content["id"], config))
            except UserError as error:  # of a rank that an elastic job has made rank 0
                log.warning("%s; training continues without it", error)

    def log(self, record: dict[str, Any]) -> None:
        """Hand a record to all trackers; it never waits for one."""
        if self._deliveries:
            repeated = _place(record) <= self._recorded.get(record["kind"], float("-inf"))
            for delivery in self._deliveries:
                delivery.log({**record, "repeated": repeated})

    @contextlib.contextmanager
    def until_end(self, elastic: bool) -> Iterator[None]:
        """Tell the trackers how what is inside ends. elastic: whether the run continues after another rank was lost."""
        try:
            yield
        except BaseException as error:
            self._end(_status(error, elastic))
            raise
        self._end("finished")

    def _end(self, status: str) -> None:
        deadline = time.monotonic() + END_S
        for delivery in self._deliveries:
            delivery.end(status)
        for delivery in self._deliveries:
            delivery.join(deadline)


def _status(error: BaseException, elastic: bool) -> str:
    """How a run ended by an error."""
    goes_on = isinstance(error, RankRemoved) or (elastic and not isinstance(error, HvdtrainError))
    return "stopped" if goes_on else RunEnd.of_exception(error).status


def _place(record: dict[str, Any]) -> float:
    """Where a record is in training: its epoch, as another batch size renumbers the steps."""
    epoch = record.get("epoch")
    return float(epoch if isinstance(epoch, int | float) else record["step"])


def _recorded(folder: Path) -> dict[str, float]:
    """The place of the last record of each kind that the run has already."""
    found: dict[str, float] = {}
    with contextlib.suppress(OSError):
        for record in metrics.read(folder / "metrics.jsonl"):
            found[record["kind"]] = max(_place(record), found.get(record["kind"], float("-inf")))
    return found


def _public(content: Any) -> Any:
    """A value of config.json without passwords in its texts, and without the command of --on-end."""
    if isinstance(content, dict):
        return {name: _public(value) for name, value in content.items() if name != "on_end"}
    if isinstance(content, list | tuple):
        return [_public(one) for one in content]
    return credentials.removed(content) if isinstance(content, str) else content
