"""The workload of a job of which no run is known: a network, and how long its computation takes."""

from __future__ import annotations

from hvdtrain.collectives.mean import shape_of
from hvdtrain.errors import UserError
from hvdtrain.measure.scale.compression import NUMBER_BYTES, count
from hvdtrain.measure.scale.workload import Workload
from hvdtrain.networks.registry import find_network

DEFAULT_SHAPE = (1, 28, 28)
"""Of images, for a network that takes any: Fashion-MNIST's."""
VALUES_PER_TENSOR = 1 << 16
"""Of a network of which only the size is known, to guess how many gradients backward computes one after the other."""
NO_COMPUTATION = "computation takes no time (--compute-ms), so the link is all that a step waits for"


def workload_of_model(model: str, input_shape: tuple[int, ...], classes: int, compute_s: float) -> Workload:
    """Steps of one image by the network that --model names. compute_s: seconds of their computation.

    input_shape: (channels, height, width); empty for that of the network. Raises UserError for networks that do not
    exist or do not fit the images.
    """
    if input_shape and len(input_shape) != 3:
        raise UserError("--input-shape has not three numbers", "give channels, height and width, such as 3 32 32")
    network = find_network(model)
    shaped = network.for_data(input_shape or network.input_shape or DEFAULT_SHAPE, classes, model)
    shapes = tuple(shape_of(shape) for _, shape in shaped.parameters())
    return _workload(shapes, len(shapes), compute_s)


def workload_of_size(parameters: int, compute_s: float) -> Workload:
    """Steps of one image by a network of which only the number of parameters is known."""
    return _workload((), max(parameters // VALUES_PER_TENSOR, 1), compute_s, NUMBER_BYTES * parameters)


def _workload(shapes: tuple[tuple[int, int], ...], tensors: int, compute_s: float, gradient_bytes: int = 0) -> Workload:
    return Workload(
        rows=1,
        fixed_s=0.0,
        row_s=compute_s,
        input_row_s=0.0,
        gradient_bytes=gradient_bytes or NUMBER_BYTES * count(shapes),
        tensors=tensors,
        spread=0.0,
        notes=() if compute_s else (NO_COMPUTATION,),
        shapes=shapes,
    )
