"""Recipes: options that belong together, by a name."""

from __future__ import annotations

from typing import Any

RECIPES: dict[str, dict[str, Any]] = {
    "digits": {},
    # Dive into Deep Learning, "Multi-GPU Computation": plain SGD, N(0, 0.01^2), batch 256, lr 0.2, 10 epochs.
    "book": {
        "data": "fashion-mnist",
        "init": "book",
        "epochs": 10,
        "batch_size": 256,
        "lr": 0.2,
        "momentum": 0.0,
        "schedule": "constant",
        "warmup_epochs": 0.0,
    },
    # The best settings found for the book's network, batch size and number of epochs.
    "fashion": {
        "data": "fashion-mnist",
        "init": "xavier",
        "epochs": 10,
        "batch_size": 256,
        "lr": 0.16,
        "momentum": 0.9,
        "nesterov": True,
        "weight_decay": 2e-4,
        "schedule": "cosine",
        "warmup_epochs": 1.0,
    },
    # He et al. (2015), section 4.2, train ResNet-20 for 64,000 steps; these are the settings for 15 epochs.
    "resnet20": {
        "data": "fashion-mnist",
        "model": "resnet20",
        "init": "he",
        "epochs": 15,
        "batch_size": 128,
        "lr": 0.1,
        "momentum": 0.9,
        "nesterov": True,
        "weight_decay": 5e-4,
        "schedule": "cosine",
        "warmup_epochs": 1.0,
    },
}
"""By name, the options that differ from the defaults of `Config`."""
