"""The tensors of a module with which each shard of a step begins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from hvdtrain.errors import UserError
from hvdtrain.frameworks.torch.network import buffer_arrays, load_buffers


class ShardStart:
    """Buffers, and the weights that forward passes change, at the beginning of a step."""

    def __init__(self, model: nn.Module, changed: Sequence[nn.Parameter]) -> None:
        self._model, self._changed = model, changed
        self.arrays = buffer_arrays(model, changed)
        self._versions = self._weight_versions()

    def end_shard(self) -> list[np.ndarray]:
        """The arrays that a shard has left, in whose place come those of the beginning.

        Raises UserError if the shard has changed something that cannot be put back.
        """
        arrays = buffer_arrays(self._model, self._changed)
        if [array.shape for array in arrays] != [array.shape for array in self.arrays]:
            raise UserError(
                "the model makes or resizes buffers when it is called, which depends on the shard",
                "give them their shapes before the first step, or leave out --shards",
            )
        versions = self._weight_versions()
        if changed := [name for name, version in versions.items() if self._versions.get(name) != version]:
            problem = f"the model changes {changed[0]} when it is called, which it did not before the first step"
            raise UserError(problem, "leave out --shards")
        load_buffers(self._model, self.arrays, self._changed)
        return arrays

    def _weight_versions(self) -> dict[str, tuple[int, int]]:
        """What differs after a change of a weight that is not known to change."""
        known, weights = set(map(id, self._changed)), self._model.named_parameters()
        return {name: (values._version, values.data_ptr()) for name, values in weights if id(values) not in known}
