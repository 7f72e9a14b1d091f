"""A task: a recurrent network that adds two numbers of a long sequence, those that are marked.

    hvdtrain train -n 2 examples/sequences.py:Adding --optimizer adam --lr 0.01

After 4 of 12 epochs, 97 % of the test sums are right within 0.1, after 8 all of them. A network that answers 1 always
is right in 19 % of the rows.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]


class LastOutput(nn.Module):
    """A GRU that returns its output at the end of each sequence, not at the end of the padding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.recurrent, self.last = nn.GRU(2, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, sequences: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        outputs, _ = self.recurrent(sequences)
        return self.last(outputs[torch.arange(len(lengths)), lengths - 1])[:, 0]


class Adding:
    """The adding problem of Hochreiter and Schmidhuber (1997), with sequences of different lengths.

    A row: numbers in [0, 1] and their marks, two of them 1, (longest, 2), padded with zeros; the length; the sum.
    """

    inputs = 2

    def __init__(self, longest: int = 30, width: int = 32) -> None:
        self.longest, self.width = longest, width

    def data(self) -> tuple[Rows, Rows]:
        generator = np.random.default_rng(0)
        return self._rows(8000, generator), self._rows(1000, generator)

    def _rows(self, count: int, generator: np.random.Generator) -> Rows:
        lengths = generator.integers(self.longest // 2, self.longest + 1, count)
        sequences = np.zeros((count, self.longest, 2), np.float32)
        for row, length in zip(sequences, lengths, strict=True):
            row[:length, 0] = generator.random(length)
            row[generator.choice(length, 2, replace=False), 1] = 1
        return sequences, lengths, sequences.prod(axis=2).sum(axis=1)

    def model(self) -> nn.Module:
        return LastOutput(self.width)

    def losses(self, sums: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
        return (sums - expected) ** 2

    def metrics(self, sums: torch.Tensor, expected: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"within 0.1": (sums - expected).abs() < 0.1}
