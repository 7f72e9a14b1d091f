"""The training of fashion_task.py by hand: DistributedDataParallel over Gloo, DistributedSampler and DataLoader.

usage: torchrun ... bare_user_task.py DATA STEPS rows|batches WORKERS

rows: the DataLoader takes rows one by one and collates them, as most programs do. batches: it asks the data set for a
whole batch at once. The loop has what a careful user gives it: a fused optimizer, gradients that are views of DDP's
buckets, no broadcast of buffers in each step, and a loss that is read once in 20 steps.
"""

import os
import sys

import bare
import torch
from fashion_task import Task
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

BATCH = 64  # of a rank

_, name, steps, kind, workers = sys.argv
torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
task = Task(name)
dataset = TensorDataset(*map(torch.from_numpy, task.data()[0]))
sampler = DistributedSampler(dataset, drop_last=True)
options = {"num_workers": int(workers), "persistent_workers": workers != "0"}
if kind == "batches":
    loader = DataLoader(dataset, batch_size=None, sampler=BatchSampler(sampler, BATCH, drop_last=True), **options)
else:
    loader = DataLoader(dataset, BATCH, sampler=sampler, drop_last=True, **options)
model = nn.parallel.DistributedDataParallel(task.model(), broadcast_buffers=False, gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, fused=True)
clock, step, epoch = bare.Clock(BATCH * torch.distributed.get_world_size()), 0, 0
while step < int(steps):
    sampler.set_epoch(epoch)
    epoch += 1
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        clock.tick(step, loss.item)
        step += 1
        if step == int(steps):
            break
if torch.distributed.get_rank() == 0:
    clock.report()
torch.distributed.barrier()
os._exit(0)  # threads of DDP and Gloo sometimes abort in destroy_process_group()
