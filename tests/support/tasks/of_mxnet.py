"""Tasks in MXNet."""

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn
from task_rows import RARE, SEQUENCES, ClassifierRows, RegressionRows, SequenceRows


class TwoInputs(gluon.Block):
    """One layer is called in training only."""

    def __init__(self):
        super().__init__()
        self.auxiliary = nn.Dense(1)
        self.of_kind, self.last, self.unused = nn.Embedding(5, 3), nn.Dense(1), nn.Dense(2)
        self.rare = nn.Dense(1, in_units=4)

    def forward(self, numbers, kinds):
        self.unused(numbers)
        value = self.last(mx.nd.concat(numbers, self.of_kind(kinds), dim=1))[:, 0]
        if autograd.is_training():
            value = value + self.auxiliary(numbers)[:, 0]
        is_rare = numbers[:, 0] > RARE
        if is_rare.sum().asscalar():
            value = value + is_rare * self.rare(numbers)[:, 0]
        return {"value": value}


class Regression(RegressionRows):
    def model(self):
        return TwoInputs()

    def metrics(self, outputs, values):
        return {"distance": (outputs["value"] - values).abs()}


class Classifier(ClassifierRows):
    """With batch normalization and random numbers."""

    def model(self):
        block = nn.HybridSequential()
        block.add(nn.Dense(self.width), nn.BatchNorm(), nn.Dropout(0.5), nn.Dense(5))
        return block


class LastOutput(gluon.HybridBlock):
    """Of an LSTM. The cell is unrolled: with MXNet's fused operator, a process that trains this task crashes."""

    def __init__(self):
        super().__init__()
        self.cell = rnn.LSTMCell(8, input_size=4)

    def hybrid_forward(self, F, sequences):
        outputs, _ = self.cell.unroll(SEQUENCES.shape[1], sequences, layout="NTC", merge_outputs=False)
        return outputs[-1]


class Sequences(SequenceRows):
    """An LSTM with dropout."""

    def model(self):
        block = nn.HybridSequential()
        block.add(LastOutput(), nn.Dropout(0.5), nn.Dense(5))
        return block


class Scheduled(Sequences):
    """With an optimizer of its own, whose learning rate falls."""

    def optimizer(self, parameters):
        schedule = mx.lr_scheduler.FactorScheduler(1, 0.5, base_lr=0.01)
        return mx.optimizer.Adam(learning_rate=0.01, lr_scheduler=schedule)
