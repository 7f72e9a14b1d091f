"""What a framework or a strategy needs, and which options it does not support."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from hvdtrain.config.options import TITLES, Config, Framework, RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.interfaces import Strategy, Unsupported
from hvdtrain.system import stacks

UNSUPPORTED: dict[Framework, tuple[Unsupported, ...]] = {
    "torch": (),
    "mxnet": (
        Unsupported("compile", (False,), "torch.compile belongs to PyTorch; MXNet's graphs are always compiled"),
        Unsupported("accumulate", (1,), "Horovod for MXNet has no backward_passes_per_step"),
        Unsupported("op", ("average", "sum"), "Horovod for MXNet has no Adasum"),
        Unsupported("precision", ("fp32", "bf16"), "MXNet 1.9 has no fp16 matrix product on the CPU"),
    ),
    "tensorflow": (
        Unsupported("compile", (False,), "torch.compile belongs to PyTorch; TensorFlow's step is always compiled"),
    ),
}


def check_framework_options(config: Config) -> None:
    """Raise UserError for an option that this framework does not support with any strategy."""
    adasum = config.framework == "torch" and config.op == "adasum"
    if adasum and (config.clip_norm or config.on_nan == "skip" or config.precision == "fp16"):
        raise UserError(
            "--op adasum: in PyTorch, Adasum combines updates, so there is no combined gradient for --clip-norm, "
            "--on-nan skip or --precision fp16",
            "leave these options out",
        )
    check_options(config, UNSUPPORTED[config.framework])


def check_options(config: Config, unsupported: Iterable[Unsupported]) -> None:
    """Raise UserError if one of these options has a value that is not supported."""
    for option, supported, reason in unsupported:
        value = getattr(config, option)
        if value not in supported:
            raise UserError(
                f"--{option.replace('_', '-')} {value}: {reason}",
                f"leave it at {getattr(Config, option)}, or change framework or strategy",
            )


def check_cuda_graph(config: Config, runtime: RuntimeOptions, strategy: type[Strategy]) -> None:
    """Raise UserError if steps with these options cannot be CUDA graphs."""
    if not strategy.captures:
        raise UserError(
            f"--cuda-graph: {TITLES[config.framework]} has no step to capture with --strategy {config.strategy}",
            "leave it out, or use --framework torch with --strategy single, horovod, ddp, ring or mpi",
        )
    for given, reason, remedy in (
        (
            config.batch_norm == "sync",
            "with --batch-norm sync, ranks exchange values in the middle of a step",
            "--batch-norm local",
        ),
        (config.op == "adasum", "--op adasum combines the updates of ranks in their optimizers", "--op average"),
        (runtime.profile > 0, "--profile times parts of a step, which a graph runs as a whole", "--profile 0"),
        (runtime.device == "cpu", "--device cpu has no GPU to launch it on", "--device gpu"),
    ):
        if given:
            raise UserError(f"--cuda-graph: {reason}", f"leave it out, or use {remedy}")


def require(modules: Iterable[str], framework: Framework) -> None:
    """Import modules that `framework`, or one of its strategies, needs; raises UserError if one cannot be imported."""
    prepare(framework)
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise _missing(name, framework, error) from None
    if framework == "tensorflow":
        importlib.import_module("hvdtrain.frameworks.tensorflow.versions").check_keras()


def prepare(framework: Framework) -> None:
    """Set what a framework reads when it is imported; call it before anything that may import it."""
    importlib.import_module(f"hvdtrain.frameworks.{framework}")


def _missing(name: str, framework: Framework, error: ImportError) -> UserError:
    reason = str(error).splitlines()[0] if str(error) else "no reason given"
    if name == framework:
        why = stacks.why_missing(framework)
        command = stacks.setup_command(stacks.stack_with(framework))
        return UserError(
            f"{framework} cannot be imported ({reason})" + (f": it {why}" if why else ""), f"run: {command}"
        )
    if name == "mpi4py.MPI":
        return UserError(f"mpi4py cannot be imported ({reason})", "run: make setup, which installs it and an MPI")
    try:
        importlib.import_module("horovod")
    except ImportError:
        return UserError("Horovod is not installed", "run: make setup, or train one process with --strategy single")
    return UserError(
        f"Horovod was built without {framework} ({reason})",
        "run: make setup, which builds it for the frameworks that are installed",
    )
