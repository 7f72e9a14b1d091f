"""A network as data: ResNet-20 for small images, as He et al. (2015) describe it in section 4.2; and deeper ones.

In any framework, on any images of at least 4x4 pixels:
    hvdtrain train -n 2 --model examples/resnet20.py:NETWORK --init he
    hvdtrain train -n 2 --model examples/resnet20.py:NETWORK --init he \
        --framework mxnet --data fashion-mnist --batch-norm sync

NETWORK is `--model resnet20`. With the first command, on digits, the test accuracy is 0.98 after 12 epochs.
"""

from __future__ import annotations

from hvdtrain import Network
from hvdtrain.networks.layers import CLASSES, BatchNorm, Conv, Dense, GlobalAveragePool, Layer, Relu, Residual


def block(channels: int, halve: bool) -> list[Layer]:
    """Two convolutions of 3x3 next to a shortcut, which is a convolution of 1x1 where the image is halved."""
    stride = 2 if halve else 1
    body = (
        Conv(channels, 3, stride, padding=1, bias=False),
        BatchNorm(),
        Relu(),
        Conv(channels, 3, padding=1, bias=False),
        BatchNorm(initial=0.0),  # so that the block begins as its shortcut
    )
    shortcut = (Conv(channels, 1, stride, bias=False), BatchNorm()) if halve else ()
    return [Residual(body, shortcut), Relu()]


def resnet(blocks: int) -> Network:
    """The network with 6 * blocks + 2 layers that have weights."""
    layers: list[Layer] = [Conv(16, 3, padding=1, bias=False), BatchNorm(), Relu()]
    for stage, channels in enumerate((16, 32, 64)):
        for number in range(blocks):
            layers += block(channels, halve=stage > 0 and number == 0)
    return Network((*layers, GlobalAveragePool(), Dense(CLASSES)))


NETWORK = resnet(3)
RESNET32 = resnet(5)
