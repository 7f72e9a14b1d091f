"""What survive.py compares with: LeNet on made-up images by DistributedDataParallel and Horovod Elastic, in PyTorch.

usage: survive_by_others.py ddp|elastic STEPS STEP_S FOLDER

Each rank writes its process id to FOLDER/pids/RANK. Rank 0 appends a line for each step to FOLDER/steps.jsonl: its
number, when it ended, and which start of the ranks that was; and the hash of the weights to FOLDER/parameters.
`ddp` writes a checkpoint after each step and resumes from it, as torchrun's users do; `elastic` commits each step, and
is otherwise Horovod's own example for elastic PyTorch.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROWS, BATCH, LR = 1440, 16, 0.02
"""Images, and how many a rank takes in a step."""
STEPS, STEP_S, FOLDER = int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4])


def made() -> tuple[nn.Module, torch.optim.Optimizer, torch.utils.data.Dataset[Any]]:
    """Model, optimizer and data, the same on each rank."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip
    rows = torch.utils.data.TensorDataset(torch.rand(ROWS, 1, 28, 28), torch.randint(0, 10, (ROWS,)))
    return model, torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9), rows


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor) -> None:
    """One step, as long as those of the other systems."""
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    time.sleep(STEP_S)
    optimizer.step()


def announce(rank: int) -> None:
    """Say which process is this rank."""
    (FOLDER / "pids").mkdir(exist_ok=True)
    draft = FOLDER / "pids" / f"{rank}.{os.getpid()}"
    draft.write_text(str(os.getpid()))
    draft.replace(FOLDER / "pids" / str(rank))


def record(step: int, start: int) -> None:
    """The end of a step, on rank 0."""
    with open(FOLDER / "steps.jsonl", "a") as file:
        file.write(json.dumps({"step": step, "time": time.time(), "start": start}) + "\n")


def record_result(model: nn.Module) -> None:
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.numpy().tobytes())
    (FOLDER / "parameters").write_text(digest.hexdigest()[:16])


def ddp() -> None:
    torch.distributed.init_process_group("gloo")
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    announce(rank)
    inner, optimizer, rows = made()
    path, begin = FOLDER / "checkpoint.pt", 0
    if path.exists():
        saved = torch.load(path)
        inner.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        begin = saved["step"]
    model = nn.parallel.DistributedDataParallel(inner)
    for step, indices in enumerate(_batches(rank, size)):
        if step < begin:
            continue
        train_step(model, optimizer, *rows[indices])
        if rank == 0:
            record(step + 1, int(os.environ["TORCHELASTIC_RESTART_COUNT"]))
            draft = path.with_suffix(".draft")
            torch.save({"model": inner.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, draft)
            draft.replace(path)
    if rank == 0:
        record_result(inner)
    torch.distributed.barrier()
    os._exit(0)  # threads of DDP and Gloo sometimes abort in destroy_process_group()


def _batches(rank: int, size: int) -> Iterator[torch.Tensor]:
    """The rows of a rank in each step."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        yield torch.randperm(ROWS, generator=generator)[: size * BATCH][rank::size]


def elastic() -> None:
    import horovod.torch as hvd

    hvd.init()
    announce(hvd.rank())
    model, optimizer, rows = made()
    sampler = hvd.elastic.ElasticSampler(rows)
    loader = torch.utils.data.DataLoader(rows, batch_size=BATCH, sampler=sampler)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    starts = 0

    @hvd.elastic.run
    def train(state: Any) -> None:
        nonlocal starts
        starts += 1
        while state.step < STEPS:
            for number, (images, labels) in enumerate(loader):
                train_step(model, optimizer, images, labels)
                sampler.record_batch(number, len(images))
                state.step += 1
                if hvd.rank() == 0:
                    record(state.step, starts)
                state.commit()
                if state.step == STEPS:
                    break
            sampler.set_epoch(sampler.epoch + 1)

    def scale_learning_rate() -> None:
        for group in optimizer.param_groups:
            group["lr"] = LR * hvd.size() / int(os.environ["RANKS"])

    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, step=0)
    state.register_reset_callbacks([scale_learning_rate])
    train(state)
    if hvd.rank() == 0:
        record_result(model)


{"ddp": ddp, "elastic": elastic}[sys.argv[1]]()
