"""The commands `hvdtrain COMMAND` and `python -m hvdtrain COMMAND`; each is imported only when it is used."""

from __future__ import annotations

import importlib
import signal
import sys

from hvdtrain.cli import COMMANDS
from hvdtrain.errors import UserError
from hvdtrain.system.command import exit_status
from hvdtrain.system.text import did_you_mean

USAGE = """usage: hvdtrain COMMAND [OPTIONS]
       python -m hvdtrain COMMAND [OPTIONS]

commands:
  train      train with data parallelism, on N ranks with -n N (--help lists options)
  launch     start a job: on this host, on other hosts over ssh, or in Slurm
  doctor     diagnose an installation, a machine or a job, and say how to fix it
  bench      measure all strategies side by side
  sweep      train with all combinations of some options, and compare the results
  scale      predict the time of a step, speed and efficiency on more ranks
  report     compare runs in tables and plots: Markdown, CSV and one HTML page
  runs       list runs, their states and results, also of those that train now
  show       show all of one run: state, options, ranks, curves, messages
  replay     train a part of a run again, and say whether the bits are the same
  diff       compare two or more runs: what differs
  watch      follow a run while it trains; with --serve, follow runs on a web page
  predict    classify image files with a checkpoint
  export     write a trained network as ONNX, or in PyTorch's or TensorFlow's own format
  completion print what a shell needs to complete commands and options

Each framework also has its own entry point, whose source shows how to launch it:
  python -m hvdtrain.mxnet_lenet | hvdtrain.torch_lenet | hvdtrain.tensorflow_lenet
"""


@exit_status()
def main(argv: list[str] | None = None, **given: str) -> None:
    """Run the command in `argv`, by default the command line's, or with arguments `given` training by its options."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # of whoever ignores it, the kernel forgets how its children ended
    argv = ["train"] * bool(given) + sys.argv[1:] if argv is None else argv
    command, rest = (argv[0], argv[1:]) if argv else ("--help", [])
    if command in COMMANDS:
        module = importlib.import_module(f"hvdtrain.cli.{command}")
        if command == "train" and module.starts_ranks(rest):
            importlib.import_module("hvdtrain.cli.launch").train(rest, **given)
        module.main(argv=rest, **given)
    elif command in ("-h", "--help"):
        print(USAGE, end="")
    elif command == "--version":
        from hvdtrain import __version__

        print(__version__)
    else:
        hint = did_you_mean(command, [*COMMANDS, "--help", "--version"])
        raise UserError(f"unknown command {command!r}{hint}", "hvdtrain --help lists the commands")


if __name__ == "__main__":
    main()
