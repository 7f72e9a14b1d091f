"""The network of larger_than_memory.py: ResNet-20 whose first convolution halves the image, as those for photos do."""

from hvdtrain.networks.description import Network
from hvdtrain.networks.layers import Conv
from hvdtrain.networks.registry import NETWORKS

NETWORK = Network((Conv(16, 3, 2, padding=1, bias=False), *NETWORKS["resnet20"].layers[1:]))
