"""A hand-written loop in PyTorch: DistributedDataParallel over Gloo, started by torchrun."""

import os

import bare
import torch
from torch import nn

name, steps = bare.arguments()
torch.distributed.init_process_group("gloo")
rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
images, labels, weights = bare.load(name)
images, labels = torch.from_numpy(images), torch.from_numpy(labels)
net = nn.Sequential(
    nn.Conv2d(1, 20, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
    nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10),
)  # fmt: skip
with torch.no_grad():
    for parameter, value in zip(net.parameters(), weights.values(), strict=True):
        parameter.copy_(torch.from_numpy(value))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=bare.LR)
clock = bare.Clock()
for step, rows in enumerate(bare.batches(len(images), steps, rank, size)):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
    loss.backward()
    optimizer.step()
    clock.tick(step, loss.item)
if rank == 0:
    clock.report()
torch.distributed.barrier()
os._exit(0)  # threads of DDP and Gloo sometimes abort in destroy_process_group()
