"""Which program of a command line is hvdtrain's own training."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

from hvdtrain.config.options import Framework


class Training(NamedTuple):
    """The training program of the command, as far as it is hvdtrain's own."""

    program: str
    framework: Framework | None
    options: list[str]


def training_program(program: Sequence[str]) -> Training | None:
    """What a launcher's program trains; None for one that is not hvdtrain's, whose options are not checked before."""
    for index, argument in enumerate(program):
        entry = re.fullmatch(r"hvdtrain\.(torch|mxnet|tensorflow)_lenet", argument)
        if entry and program[index - 1].endswith("m"):
            framework = cast("Framework", entry[1])
            return Training(f"python -m {argument}", framework, list(program[index + 1 :]))
        if Path(argument).name == "hvdtrain" and list(program[index + 1 : index + 2]) == ["train"]:
            return Training("hvdtrain train", None, list(program[index + 2 :]))
    return None
