"""`python -m hvdtrain.torch_lenet` with cuDNN's deterministic kernels, as bit-exact comparisons on a GPU need them."""

import torch

from hvdtrain.cli.train import main

if __name__ == "__main__":
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    main("torch", "deterministic_training.py")
