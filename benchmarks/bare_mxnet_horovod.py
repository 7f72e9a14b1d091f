"""A hand-written loop in MXNet: hybridized Gluon and Horovod's DistributedTrainer."""

import bare
import horovod.mxnet as hvd
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn

name, steps = bare.arguments()
hvd.init()
images, labels, weights = bare.load(name)
net = nn.HybridSequential()
net.add(
    nn.Conv2D(20, 3, in_channels=1, activation="relu"), nn.AvgPool2D(2),
    nn.Conv2D(50, 5, in_channels=20, activation="relu"), nn.AvgPool2D(2), nn.Flatten(),
    nn.Dense(128, in_units=800, activation="relu"), nn.Dense(10, in_units=128),
)  # fmt: skip
net.initialize()
for parameter, value in zip(net.collect_params().values(), weights.values(), strict=True):
    parameter.set_data(mx.nd.array(value))
net.hybridize(static_alloc=True, static_shape=True)
criterion = gluon.loss.SoftmaxCrossEntropyLoss()
criterion.hybridize(static_alloc=True, static_shape=True)
hvd.broadcast_parameters(net.collect_params(), root_rank=0)
trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": bare.LR})
clock = bare.Clock()
for step, rows in enumerate(bare.batches(len(images), steps, hvd.rank(), hvd.size())):
    batch, target = mx.nd.array(images[rows]), mx.nd.array(labels[rows])
    with autograd.record():
        loss = criterion(net(batch), target)
    loss.backward()
    trainer.step(len(rows))
    clock.tick(step, lambda loss=loss: loss.mean().asscalar())
if hvd.rank() == 0:
    clock.report()
mx.nd.waitall()  # MXNet waits forever for an allreduce that is still under way when Horovod shuts down
