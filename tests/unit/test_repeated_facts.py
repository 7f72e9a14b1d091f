"""Facts that two folders repeat, as neither can import the other or a type cannot be computed, agree."""

from typing import get_args, get_type_hints

from hvdtrain.config.options import Config, Framework
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.frameworks.registry import STYLES
from hvdtrain.jobs import program
from hvdtrain.system.versions import DISTRIBUTIONS, EXTRAS


def test_frameworks():
    frameworks = set(get_args(Framework))
    assert set(STYLES) == set(DISTRIBUTIONS) == set(EXTRAS) == frameworks
    for framework in frameworks:
        assert program.is_own(["python", "-m", f"hvdtrain.{framework}_lenet"])


def test_options_name_all_styles():
    kinds = get_type_hints(Config)
    assert set(get_args(kinds["api"])) == {"auto", *(style for styles in STYLES.values() for style in styles)}


def test_the_launcher_has_the_default_folder_of_runs():
    assert str(RuntimeOptions().runs) == program.RUNS
