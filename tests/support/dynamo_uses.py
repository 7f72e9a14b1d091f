"""Uses of torch._dynamo, each as the first one in its process, with the import of it postponed or as PyTorch has it.

usage: python dynamo_uses.py postponed|shipped

Prints what each use gives, as JSON. The processes are forks of one that has imported PyTorch.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from hvdtrain.frameworks.torch import late_dynamo

Model = tuple[torch.nn.Module, torch.optim.Optimizer]
SHOWS = "torch._dynamo.symbolic_convert"
"""A module that torch._dynamo imports, and nothing else."""


def model(kind: type[torch.optim.Optimizer] = torch.optim.SGD) -> Model:
    """A model whose optimizer has made a step, and what else does not need torch._dynamo."""
    network = torch.nn.Linear(3, 2)
    torch.nn.init.eye_(network.weight)  # without random numbers, which threads would share
    torch.nn.init.zeros_(network.bias)
    optimizer = kind([network.weight], lr=0.1)
    optimizer.add_param_group({"params": [network.bias]})
    made = network, optimizer
    step(*made)
    optimizer.load_state_dict(optimizer.state_dict())
    return made


def step(network: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    optimizer.zero_grad()
    loss = network(torch.ones(4, 3)).square().sum()
    loss.backward()
    optimizer.step()
    return loss


def weights(network: torch.nn.Module) -> list[float]:
    return [round(value, 6) for value in network.weight.flatten().tolist()]


def compiled_frames(function: Callable[..., Any], *arguments: Any) -> tuple[int, int]:
    """Frames and operations of a function that torch.compile compiled."""
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    torch.compile(function, backend=counter)(*arguments)
    return counter.frame_count, counter.op_count


def compile_a_step() -> Any:
    network, optimizer = model(torch.optim.Adam)
    return compiled_frames(step, network, optimizer), weights(network)


def disable_a_function() -> Any:
    model()
    disabled = torch.compiler.disable(lambda x: x.sin().cos())
    return compiled_frames(lambda x: disabled(x + 1) * 2, torch.ones(3))


def import_a_submodule() -> Any:
    import torch._dynamo.config as config

    model()
    spec = config.__spec__
    return config is torch._dynamo.config, spec.name, os.path.basename(spec.origin), type(spec.loader).__name__


def keep_the_module() -> Any:
    import torch._dynamo as kept

    model()
    found = "optimize" in dir(kept), kept.optimize is torch._dynamo.optimize
    return found, sys.modules["torch._dynamo"] is torch._dynamo, type(torch._dynamo).__name__


def set_an_attribute() -> Any:
    model()
    torch._dynamo.graph_break = len
    network, optimizer = model()
    try:
        step(network, optimizer)
    except TypeError as error:  # len() of nothing
        return str(error)
    return weights(network)


def use_in_threads() -> Any:
    """Some make steps while another compiles: the import happens once, and all wait for it."""
    ended: list[Any] = []
    begin = threading.Barrier(4)

    def run(function: Callable[[], Any]) -> None:
        begin.wait()
        ended.append(function())

    def steps() -> Any:
        for _ in range(300):
            made = model()
        return weights(made[0])

    uses = [steps, steps, lambda: torch._dynamo.config.suppress_errors, lambda: bool(torch._dynamo.optimize)]
    threads = [threading.Thread(target=run, args=(use,)) for use in uses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(map(str, ended))


USES = {
    use.__name__: use
    for use in (
        compile_a_step,
        disable_a_function,
        import_a_submodule,
        keep_the_module,
        set_an_attribute,
        use_in_threads,
    )
}


def do(use: Callable[[], Any], postponed: bool) -> Any:
    """What a use gives, or the error that it raises."""
    if postponed:
        late_dynamo.postpone()
        model()
        assert SHOWS not in sys.modules
    try:
        given = use()
    except Exception as error:
        given = f"{type(error).__name__}: {error}"
    assert SHOWS in sys.modules
    return given


def main(how: str) -> None:
    if how == "shipped":
        import torch._dynamo  # noqa: F401  (as the first optimizer does)
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        given = {name: pool.apply_async(do, (USES[name], how == "postponed")) for name in USES}
        print(json.dumps({name: value.get() for name, value in given.items()}, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
