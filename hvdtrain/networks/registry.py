"""--model: the built-in networks by name, or the user's own in a TOML or Python file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from hvdtrain.errors import UserError
from hvdtrain.networks.description import Network
from hvdtrain.networks.layers import (
    CLASSES,
    AnyLayer,
    BatchNorm,
    Conv,
    Dense,
    Flatten,
    GlobalAveragePool,
    Pool,
    Relu,
    Residual,
)
from hvdtrain.networks.record import TOO_DEEP, from_record, to_record
from hvdtrain.system.files import read_toml
from hvdtrain.system.python_files import class_remedy, is_reference, is_script, load_object
from hvdtrain.system.text import did_you_mean


def residual_block(inputs: int, outputs: int) -> tuple[AnyLayer, ...]:
    """Two convolutions of 3x3 parallel to a shortcut; where the number of channels changes, the image is halved.

    The shortcut is then a convolution of 1x1 (option B of He et al.).
    """
    stride = 1 if inputs == outputs else 2
    body = (
        Conv(outputs, 3, stride, padding=1, bias=False),
        BatchNorm(),
        Relu(),
        Conv(outputs, 3, padding=1, bias=False),
        BatchNorm(initial=0.0),
    )
    shortcut = () if inputs == outputs else (Conv(outputs, 1, stride, bias=False), BatchNorm())
    return Residual(body, shortcut), Relu()


def lenet_stage(outputs: int, kernel: int, reduction: Literal["average", "max"]) -> tuple[AnyLayer, ...]:
    """A convolution, after which the image is halved."""
    return Conv(outputs, kernel), Relu(), Pool(reduction, 2)


NETWORKS: dict[str, Network] = {
    # The LeNet of Dive into Deep Learning, "Multi-GPU Computation" (https://d2l.ai): 129,068 parameters.
    "lenet": Network(
        (*lenet_stage(20, 3, "average"), *lenet_stage(50, 5, "average"), Flatten(), Dense(128), Relu(), Dense(CLASSES)),
        (1, 28, 28),
    ),
    # The network of PyTorch's CIFAR-10 tutorial: LeCun's LeNet-5 for three channels, 62,006 parameters.
    "cifar_lenet": Network(
        (
            *lenet_stage(6, 5, "max"),
            *lenet_stage(16, 5, "max"),
            Flatten(),
            Dense(120),
            Relu(),
            Dense(84),
            Relu(),
            Dense(CLASSES),
        ),
        (3, 32, 32),
    ),
    # A perceptron with one hidden layer, as in Dive into Deep Learning, "Multilayer Perceptrons": 203,530 parameters on
    # images of 1x28x28.
    "mlp": Network((Flatten(), Dense(256), Relu(), Dense(CLASSES))),
    # The ResNet-20 for small images of He et al., Deep Residual Learning for Image Recognition, 2015, section 4.2, with
    # convolutions where a shortcut changes the number of channels: 272,186 parameters on images of 1x28x28.
    "resnet20": Network(
        (
            Conv(16, 3, padding=1, bias=False),
            BatchNorm(),
            Relu(),
            *(layer for channels in ((16, 16),) * 3 for layer in residual_block(*channels)),
            *(layer for channels in ((16, 32), (32, 32), (32, 32)) for layer in residual_block(*channels)),
            *(layer for channels in ((32, 64), (64, 64), (64, 64)) for layer in residual_block(*channels)),
            GlobalAveragePool(),
            Dense(CLASSES),
        )
    ),
}


def find_network(model: str) -> Network:
    """The network that --model names: a built-in one, NET.toml, or FILE.py:NAME.

    Raises UserError if there is none, or the file is not valid.
    """
    if model in NETWORKS:
        return NETWORKS[model]
    if model.endswith(".toml"):
        return checked(read_toml(Path(os.path.expanduser(model)), f"--model {model}"), f"--model {model}")
    if is_reference(model):
        return _from_python(model, f"--model {model}")
    if is_script(model):
        raise UserError(f"--model {model}: the class or network in it is missing", class_remedy(model))
    raise UserError(
        f"--model {model}: no such network{did_you_mean(model, NETWORKS)}",
        f"give {', '.join(NETWORKS)}, a file NETWORK.toml, or FILE.py:NAME",
    )


def _from_python(reference: str, option: str) -> Network:
    """The network as its record has it: with values of the right types, which Python does not check."""
    network = load_object(reference, option)
    if not isinstance(network, Network) or not isinstance(network.layers, tuple | list):
        raise UserError(f"{option}: is {network!r:.60}", "give a hvdtrain.Network of a tuple of layers")
    return checked(network, option)


def checked(network: Any, option: str) -> Network:
    """The network of a record, or of Python values. option: names it. Raises UserError if it is not valid."""
    try:
        return from_record(to_record(network))
    except (ValueError, RecursionError) as error:  # the latter from layers that contain themselves
        reason = TOO_DEEP if isinstance(error, RecursionError) else error
        raise UserError(f"{option}: {reason}", "correct the network (docs/networks.md)") from None
