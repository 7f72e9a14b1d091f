"""Several trainings in the same processes, as a user starts each: launcher and framework start once.

usage: [LAUNCHER] python benchmarks/train_several.py OPTIONS of training [--then OPTIONS of training]...
"""

from __future__ import annotations

import sys

from hvdtrain.doctor import examine_host
from hvdtrain.training.process import ending_process, prepare_host, read_options


def main(words: list[str]) -> None:
    """Train with each of the options; ends the process with an exit status, as `hvdtrain train` does."""
    with ending_process():
        while words:
            end = words.index("--then") if "--then" in words else len(words)
            config, runtime = read_options(None, "train_several.py", words[:end])
            prepare_host(config, runtime)  # before anything imports NumPy
            from hvdtrain.training.train import train

            train(config, runtime, examine_host)
            words = words[end + 1 :]


if __name__ == "__main__":
    main(sys.argv[1:])
