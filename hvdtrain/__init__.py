"""hvdtrain: train with data parallelism on Horovod in MXNet, PyTorch and TensorFlow, with one loop."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from hvdtrain.system import start_folder as start_folder

if TYPE_CHECKING:
    from hvdtrain.api import fit as fit
    from hvdtrain.api import launch as launch
    from hvdtrain.api import load as load
    from hvdtrain.api import start as start
    from hvdtrain.config.options import Config as Config
    from hvdtrain.config.options import RuntimeOptions as RuntimeOptions
    from hvdtrain.datasets.formats.image_files import read_image as read_image
    from hvdtrain.datasets.registry import load_dataset as load_dataset
    from hvdtrain.datasets.streams import Stream as Stream
    from hvdtrain.datasets.weights import Weighted as Weighted
    from hvdtrain.networks.description import Network as Network
    from hvdtrain.runs.record import RunFolder as RunFolder
    from hvdtrain.tasks.progress import progress as progress

__version__ = "0.3.0"

MODULES = {
    "Config": "config.options",
    "Network": "networks.description",
    "RunFolder": "runs.record",
    "RuntimeOptions": "config.options",
    "Stream": "datasets.streams",
    "Weighted": "datasets.weights",
    "fit": "api",
    "launch": "api",
    "load": "api",
    "load_dataset": "datasets.registry",
    "progress": "tasks.progress",
    "read_image": "datasets.formats.image_files",
    "start": "api",
}
"""Where the names of the package are. They are imported when they are asked for, as the agents that launch ranks also
import this package."""


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"hvdtrain.{MODULES[name]}"), name)
    except Exception as error:
        from hvdtrain.system.stacks import known_error

        known = known_error(error)
        if not known:
            raise
        sys.exit(f"hvdtrain: {known}")


if sys.version_info < (3, 10):  # noqa: UP036  (in words that Python 3.6 understands)
    sys.exit("hvdtrain: needs Python 3.10 or later; make setup, then source .venv/bin/activate")
