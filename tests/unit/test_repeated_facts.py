"""Facts that two folders repeat, as neither can import the other or a type cannot be computed, agree."""

import re
from pathlib import Path
from typing import get_args, get_type_hints

from support.jobs import ROOT

from hvdtrain.cli.training_program import training_program
from hvdtrain.config.options import STYLES, Config, Framework
from hvdtrain.system.stacks import DISTRIBUTIONS, STACKS, Stack


def test_frameworks():
    frameworks = set(get_args(Framework))
    assert set(STYLES) == set(DISTRIBUTIONS) == frameworks
    for framework in frameworks:
        assert training_program(["python", "-m", f"hvdtrain.{framework}_lenet"]).framework == framework


def test_stacks_are_those_of_set_up():
    def words(file: Path, name: str) -> tuple[str, ...]:
        return tuple(re.search(rf'^{name}="(.*)"$', file.read_text(), re.M)[1].split())

    files = (ROOT / "setup" / "stacks").glob("*/stack.conf")
    of_setup = [Stack(one.parent.name, words(one, "PYTHONS"), words(one, "FRAMEWORKS")) for one in files]
    assert {one.name: one for one in of_setup} == STACKS


def test_options_name_all_styles():
    kinds = get_type_hints(Config)
    assert set(get_args(kinds["api"])) == {"auto", *(style for styles in STYLES.values() for style in styles)}
