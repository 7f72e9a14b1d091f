"""Tasks in PyTorch, and mistaken ones."""

import torch
from task_rows import ClassifierRows, OddLabelRows, RegressionRows, SequenceRows, ShortLabelRows
from torch import nn


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.of_kind, self.last, self.unused = nn.Embedding(5, 3), nn.Linear(7, 1), nn.Linear(2, 2)

    def forward(self, numbers, kinds):
        return {"value": self.last(torch.cat([numbers, self.of_kind(kinds)], 1))[:, 0]}


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


class MeanLoss(Regression):
    def losses(self, outputs, values):
        return super().losses(outputs, values).mean()


class FailingLoss(Regression):
    def losses(self, outputs, values):
        return outputs["price"] - values  # the line that fails


class OddLabels(OddLabelRows, Classifier):
    pass


class ShortLabels(ShortLabelRows, Classifier):
    pass
