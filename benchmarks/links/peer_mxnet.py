"""A peer of this benchmark: MXNet's KVStore dist_sync, with its own 2-bit compression of gradients.

Option besides those of training: threshold, of the 2-bit compression; without it, float32. Each host has a server, and
the first one the scheduler. Ranks push gradients, which are compressed, pull their sum, which is not, and update their
weights themselves, so that the learning rate can follow the schedule.
"""

import os
import socket
import subprocess
import sys

import mxnet as mx
import peer
from mxnet import autograd, gluon

from hvdtrain.frameworks.mxnet.network import GluonNetwork, channel_multiple, load_parameters, named_parameters
from hvdtrain.system.processes import end_with_parent

job = peer.Job()
config = job.config
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing
    probe.connect((peer.MASTER, peer.PORT))
    own_address = probe.getsockname()[0]
common = {
    "DMLC_PS_ROOT_URI": peer.MASTER,
    "DMLC_PS_ROOT_PORT": str(peer.PORT),
    "DMLC_NUM_WORKER": str(peer.SIZE),
    "DMLC_NUM_SERVER": str(peer.SIZE),
    "DMLC_NODE_HOST": own_address,
}
for role in ["scheduler"] * (peer.RANK == 0) + ["server"]:
    subprocess.Popen(
        [sys.executable, "-c", "import mxnet"],
        env={**os.environ, **common, "DMLC_ROLE": role},
        preexec_fn=end_with_parent,
    )
os.environ.update(common, DMLC_ROLE="worker")
net = GluonNetwork(job.network, channel_multiple("cpu", "fp32"))
net.initialize()
load_parameters(named_parameters(net), job.weights)
net.hybridize(static_alloc=True, static_shape=True)
criterion = gluon.loss.SoftmaxCrossEntropyLoss()
criterion.hybridize(static_alloc=True, static_shape=True)
options = {"learning_rate": config.lr, "momentum": config.momentum, "wd": config.weight_decay}
trainer = gluon.Trainer(net.collect_params(), "nag" if config.nesterov else "sgd", options, kvstore=None)
# Not by the trainer's own store: with update_on_kvstore=False it pushes and pulls in one call, which does not compress.
store = mx.kv.create("dist_sync")
if threshold := job.options.get("threshold"):
    store.set_gradient_compression({"type": "2bit", "threshold": threshold})
for key, parameter in enumerate(trainer._params):
    store.init(key, parameter.data())


def evaluate() -> tuple[float, int]:
    """Right answers and rows of the whole test part, on rank 0."""
    right, rows = 0.0, 0
    for images, labels in job.test_rows(0, 1) if peer.RANK == 0 else ():
        right += float((net(mx.nd.array(images)).argmax(1).asnumpy() == labels).sum())
        rows += len(labels)
    return right, max(rows, 1)


previous = config.lr
for step, lr, images, labels in job.batches():
    # MXNet's momentum is kept times the learning rate.
    for state in trainer._updaters[0].states.values():
        state *= lr / previous
    trainer.set_learning_rate(lr)
    previous = lr
    batch, target = mx.nd.array(images), mx.nd.array(labels)
    with autograd.record():
        loss = criterion(net(batch), target)
    loss.backward()
    for key, parameter in enumerate(trainer._params):
        store.push(key, parameter.grad(), priority=-key)
        store.pull(key, parameter.grad(), priority=-key)
    trainer.update(config.batch_size)
    job.after(step, lambda loss=loss: float(loss.mean().asscalar()), evaluate)
mx.nd.waitall()
