"""A script with a training loop of its own: it makes model, optimizer, schedule and losses; hvdtrain does the rest.

    hvdtrain launch local -n 2 -- python examples/own_loop.py --epochs 4
    hvdtrain launch local -n 2 --restarts 3 -- python examples/own_loop.py --epochs 4 --name spirals --resume auto
    python examples/own_loop.py --epochs 4

The last one trains in one process. Expect an accuracy of about 0.99 after 4 epochs.
"""

import numpy as np
import torch
from torch import nn

import hvdtrain


def spirals(rows, seed):
    """Points on two spirals that wind around each other, and which one they are on."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, rows)
    angle = random.uniform(0.5, 10, rows)
    radius = angle + random.normal(scale=0.1, size=rows)
    turned = angle + np.pi * labels
    return np.stack([radius * np.cos(turned), radius * np.sin(turned)], 1).astype(np.float32) / 10, labels


with hvdtrain.start() as run:
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))
    model, optimizer = run.setup(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    run.register(schedule=schedule)

    def evaluate(points, labels):
        outputs = model(points)
        return nn.functional.cross_entropy(outputs, labels, reduction="none"), {"accuracy": outputs.argmax(1) == labels}

    for points, labels in run.batches(spirals(4000, 0), spirals(1000, 1), evaluate):
        outputs = model(points + 0.01 * torch.randn_like(points))
        if run.step(nn.functional.cross_entropy(outputs, labels, reduction="none")):
            schedule.step()
