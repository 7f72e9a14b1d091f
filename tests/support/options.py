"""Options of training, from a command line."""

from hvdtrain.config.options import Config, Framework, RuntimeOptions
from hvdtrain.config.sources import CommandLine


def parse(argv: list[str], program: str = "train", framework: Framework | None = None) -> tuple[Config, RuntimeOptions]:
    return CommandLine.read(argv, program, framework).options()
