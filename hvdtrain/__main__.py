"""python -m hvdtrain {train,launch,doctor,bench,report,predict}: each command is imported only when it is asked for."""

from __future__ import annotations

import importlib
import sys

USAGE = """usage: python -m hvdtrain COMMAND [OPTIONS]

commands:
  train      train LeNet with data parallelism (--help lists the options)
  launch     start a job: here, on hosts by ssh, or in Slurm
  doctor     tell what is wrong with an installation, a machine or a job, and what mends it
  bench      measure all strategies side by side; bench allreduce: what an allreduce takes
  report     tables and plots of runs: Markdown, CSV and one HTML page
  predict    classify image files with a checkpoint

Each framework has its own door as well, with the ways to launch it in its first lines:
  python -m hvdtrain.mxnet_lenet | hvdtrain.torch_lenet | hvdtrain.tensorflow_lenet
"""


# command: the module that is it
COMMANDS = {
    **{name: f"cli.{name}" for name in ("train", "launch", "doctor", "bench", "report", "predict")},
}


def main(argv: list[str]) -> None:
    """Run one command; ends the process with exit status 2 where there is no such command."""
    command, rest = (argv[0], argv[1:]) if argv else ("--help", [])
    if command in COMMANDS:
        importlib.import_module(f"hvdtrain.{COMMANDS[command]}").main(argv=rest)
    elif command in ("-h", "--help"):
        print(USAGE, end="")
    elif command == "--version":
        from hvdtrain import __version__

        print(__version__)
    else:
        print(f"hvdtrain: no command {command!r}; python -m hvdtrain --help lists them", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
