"""The processes of a job: alone, or Horovod's. Framework-neutral; the framework's module of Horovod is handed in."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from hvdtrain import environ
from hvdtrain.errors import UserError


class Solo:
    """One process: every collective is the identity."""

    rank, size, local_rank = 0, 1, 0

    def sum(self, values: np.ndarray) -> np.ndarray:
        return values

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, value: Any) -> Any:
        return value

    def close(self) -> None:
        pass


class Horovod:
    """Horovod's processes, for the module `horovod.torch`, `horovod.mxnet` or `horovod.tensorflow`.

    to_tensor, to_numpy: the framework's conversions of a float64 vector on the host.
    """

    def __init__(self, hvd: ModuleType, to_tensor: Callable[[np.ndarray], Any], to_numpy: Callable[[Any], np.ndarray]):
        hvd.init()
        self._hvd, self._to_tensor, self._to_numpy = hvd, to_tensor, to_numpy
        self.rank, self.size, self.local_rank = hvd.rank(), hvd.size(), hvd.local_rank()
        self._check_promise()

    def _check_promise(self) -> None:
        """Horovod built without the launcher's controller leaves every process believing that it is alone."""
        promised = environ.place()
        if promised.size == self.size:
            return
        missing = "MPI" if promised.launcher in ("mpirun", "mpiexec", "srun") else "Gloo"
        alone = "each process thinks it is alone" if self.size == 1 else f"Horovod sees {self.size}"
        raise UserError(
            f"{promised.launcher} started {promised.size} processes but {alone}: Horovod was built without "
            f"{missing}, or was told another controller; see horovodrun --check-build, and make setup mends it"
        )

    def sum(self, values: np.ndarray) -> np.ndarray:
        tensor = self._to_tensor(np.asarray(values, np.float64))
        return self._to_numpy(self._hvd.allreduce(tensor, name="hvdtrain.sum", op=self._hvd.Sum))

    def gather(self, value: Any) -> list[Any]:
        return self._hvd.allgather_object(value, name="hvdtrain.gather")

    def broadcast(self, value: Any) -> Any:
        # Not broadcast_object: MXNet's does not wait on rank 0, so that a second one meets the first by name and hangs.
        return self.gather(value if self.rank == 0 else None)[0]

    def close(self) -> None:
        self._hvd.shutdown()


def solo() -> Solo:
    """A group of one. Raises UserError where a launcher started several, which would all train apart."""
    promised = environ.place()
    if promised.size > 1:
        raise UserError(
            f"{promised.launcher} started {promised.size} processes, and with --strategy single each would "
            "train alone; use --strategy horovod, or start one process"
        )
    return Solo()
