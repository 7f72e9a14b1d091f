"""The built-in networks, by name."""

from __future__ import annotations

from hvdtrain.networks.description import Conv, Dense, Flatten, Network, Pool, Relu

NETWORKS: dict[str, Network] = {
    # The LeNet of Dive into Deep Learning, "Multi-GPU Computation" (https://d2l.ai): 129,068 parameters.
    "lenet": Network(
        (1, 28, 28),
        10,
        (
            Conv("conv1", 1, 20, 3),
            Relu(),
            Pool("average", 2),
            Conv("conv2", 20, 50, 5),
            Relu(),
            Pool("average", 2),
            Flatten(),
            Dense("dense1", 800, 128),
            Relu(),
            Dense("dense2", 128, 10),
        ),
    ),
    # The network of PyTorch's CIFAR-10 tutorial: LeCun's LeNet-5 for three channels, 62,006 parameters.
    "cifar_lenet": Network(
        (3, 32, 32),
        10,
        (
            Conv("conv1", 3, 6, 5),
            Relu(),
            Pool("max", 2),
            Conv("conv2", 6, 16, 5),
            Relu(),
            Pool("max", 2),
            Flatten(),
            Dense("dense1", 400, 120),
            Relu(),
            Dense("dense2", 120, 84),
            Relu(),
            Dense("dense3", 84, 10),
        ),
    ),
}
