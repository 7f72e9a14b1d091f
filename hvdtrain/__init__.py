"""hvdtrain: train with data parallelism on Horovod in MXNet, PyTorch and TensorFlow, with one loop."""

__version__ = "0.1.0"
