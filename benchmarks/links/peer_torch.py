"""A peer of this benchmark: PyTorch's DistributedDataParallel over Gloo, with its own communication hooks.

Options besides those of training: hook (none, fp16 for fp16_compress_hook, powersgd for powerSGD_hook with error
feedback and warm start), rank (matrix_approximation_rank), start (start_powerSGD_iter, at least 2).
"""

import os

import peer
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from hvdtrain.frameworks.torch.network import TorchNetwork, load_module

job = peer.Job()
options, config = job.options, job.config
address = f"tcp://{peer.MASTER}:{peer.PORT}"
torch.distributed.init_process_group("gloo", address, rank=peer.RANK, world_size=peer.SIZE)
net = TorchNetwork(job.network)
load_module(net, job.weights)
model = nn.parallel.DistributedDataParallel(net, broadcast_buffers=False)
hook = options.get("hook", "none")
if hook == "fp16":
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
elif hook == "powersgd":
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=options["rank"], start_powerSGD_iter=options["start"]
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
optimizer = torch.optim.SGD(
    model.parameters(), config.lr, config.momentum, weight_decay=config.weight_decay, nesterov=config.nesterov
)


def evaluate() -> tuple[float, int]:
    """Right answers and rows over all ranks, by rank 0's running statistics, as in hvdtrain."""
    for buffer in net.buffers():
        torch.distributed.broadcast(buffer, 0)
    net.eval()
    sums = torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        for images, labels in job.test_rows():
            right = (net(torch.from_numpy(images)).argmax(1) == torch.from_numpy(labels)).sum()
            sums += torch.tensor([float(right), float(len(labels))])
    net.train()
    torch.distributed.all_reduce(sums)
    return float(sums[0]), int(sums[1])


for step, lr, images, labels in job.batches():
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(torch.from_numpy(images)), torch.from_numpy(labels))
    loss.backward()
    optimizer.step()
    job.after(step, loss.item, evaluate)
torch.distributed.barrier()
os._exit(0)  # threads of DDP and Gloo sometimes abort in destroy_process_group()
