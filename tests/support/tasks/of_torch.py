"""Tasks in PyTorch."""

import torch
from task_rows import RARE, ClassifierRows, RegressionRows, SequenceRows
from torch import nn

import hvdtrain


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.of_kind, self.last, self.unused = nn.Embedding(5, 3), nn.Linear(7, 1), nn.Linear(2, 2)
        self.rare = nn.Linear(4, 1)
        self.turn = nn.Parameter(torch.tensor(1 + 0.1j))

    def forward(self, numbers, kinds):
        value = self.last(torch.cat([numbers, self.of_kind(kinds)], 1))[:, 0]
        is_rare = numbers[:, 0] > RARE
        if self.training and is_rare.any():
            value = value + is_rare * self.rare(numbers)[:, 0]
        return {"value": (value * self.turn).real}


class Regression(RegressionRows):
    def model(self):
        return TwoInputs()

    def metrics(self, outputs, values):
        return {"distance": (outputs["value"] - values).abs()}


class Classifier(ClassifierRows):
    """With batch normalization and random numbers."""

    def model(self):
        width = self.width
        return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Dropout(0.5), nn.Linear(width, 5))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent, self.dropout, self.last = nn.LSTM(4, 8, batch_first=True), nn.Dropout(0.5), nn.Linear(8, 5)

    def forward(self, sequences):
        outputs, _ = self.recurrent(sequences)
        return self.last(self.dropout(outputs[:, -1]))


class Sequences(SequenceRows):
    """An LSTM with dropout."""

    def model(self):
        return Recurrent()


class Drawing(nn.Module):
    """Draws random numbers in evaluations as well, and asks for the step.

    It has a mask, a large counter, a mean, gradients of float64, and some near the smallest normal number of float32.
    """

    def __init__(self):
        super().__init__()
        self.tiny = nn.Parameter(torch.zeros(4))
        self.hidden, self.last = nn.Linear(4, 5), nn.Linear(5, 5, dtype=torch.float64)
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
        self.register_buffer("calls", torch.tensor(2**60))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, numbers):
        if self.training:
            self.calls += 1
            self.mean.lerp_(numbers.mean(0), 0.1)
        now = hvdtrain.progress()
        noise = (0.1 + now.step / 100 + now.epoch) * torch.randn_like(numbers)
        return self.last(self.hidden(numbers - self.mean + noise + self.tiny * 1e-18 * 1e-18).double()).float()


class DrawingClassifier(ClassifierRows):
    """Flushes denormals to zero, in the thread that trains only."""

    def model(self):
        torch.set_flush_denormal(True)
        return Drawing()
