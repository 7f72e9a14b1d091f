"""Options whose text has a form of its own, and options that went."""

import pytest
from support.options import parse

from hvdtrain.config.betas import Betas
from hvdtrain.config.intervals import Intervals
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.config.schedule import Schedule
from hvdtrain.config.split import Split
from hvdtrain.config.strategy_names import OVER_HOROVOD, style_of
from hvdtrain.config.validity import check_script
from hvdtrain.errors import UserError
from hvdtrain.system import removed


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (Schedule, "cosine", Schedule("cosine")),
        (Schedule, "step", Schedule("step", factor=0.1, epochs=5)),
        (Schedule, "step:0.5", Schedule("step", factor=0.5, epochs=5)),
        (Schedule, "step::2", Schedule("step", factor=0.1, epochs=2)),
        (Schedule, "polynomial:2", Schedule("polynomial", power=2.0)),
        (Schedule, "onecycle:0", Schedule("onecycle", share=0.0)),
        (Betas, "0.8:0.99", Betas(0.8, 0.99)),
        (Betas, "0.8", Betas(0.8, 0.999)),
        (Betas, ":0.99", Betas(0.9, 0.99)),
        (Intervals, (), Intervals(0, 60)),
        (Intervals, ("100",), Intervals(100, 60)),
        (Intervals, ("0s",), Intervals(0, 0)),
        (Intervals, ("100", "1.5s"), Intervals(100, 1.5)),
        (Intervals, ("5", "7s", "6", "8s"), Intervals(6, 8)),
        # A share in a part is the number that its digits mean, so that the rows do not depend on how it is written.
        (Split, "", (0, 0)),
        (Split, "0.8", (0.8, 0)),
        (Split, "0.8/0/0.2", (0.8, 0)),
        (Split, "0.9/0.1", (0, 0.1)),
        (Split, "0.7/0.3", (0, 0.3)),
        (Split, "0.8/0.1/0.1", (0.9, 1 / 9)),
        (Split, "0.72/0.08/0.2", (0.8, 0.1)),
        (Split, "0.56/0.24/0.2", (0.8, 0.3)),
    ],
)
def test_what_a_text_means(kind, text, expected):
    assert kind.parse(text) == expected


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"schedule": "cosin"}, "--schedule cosin: no such schedule (did you mean cosine?); use constant, "),
        ({"schedule": ""}, "--schedule '': is empty, or has spaces around it"),
        ({"schedule": "cosine:1"}, "--schedule cosine:1: has too many values; use cosine"),
        ({"schedule": "step:0"}, "--schedule step:0: FACTOR must be above 0; use step:FACTOR:EPOCHS"),
        ({"schedule": "step:1:0.5"}, "--schedule step:1:0.5: '0.5' is no value of EPOCHS"),
        ({"schedule": "polynomial:inf"}, "--schedule polynomial:inf: 'inf' is no value of POWER"),
        ({"schedule": "onecycle:1"}, "--schedule onecycle:1: SHARE must be below 1"),
        ({"betas": "1:0.9"}, "--betas 1:0.9: BETA1 must be below 1; give BETA1:BETA2"),
        ({"betas": "0.9:0.9:0.9"}, "--betas 0.9:0.9:0.9: has too many values"),
        ({"checkpoint_every": ("10m",)}, "--checkpoint-every 10m: '10m' is no value of STEPS; give steps, such as 100"),
        ({"checkpoint_every": ("1", "-1s")}, "--checkpoint-every -1s: SECONDS must be 0 or more"),
        ({"split": "80 %"}, "--split 80 %: is not a list of shares; give TRAIN/VALIDATION/TEST"),
        ({"split": "0.8/0.1"}, "--split 0.8/0.1: the sum of its shares is 0.9, and not 1"),
        ({"split": "1"}, "--split 1: a part has no rows"),
        ({"split": "1/0"}, "--split 1/0: a part has no rows"),
        ({"split": "0.5/0.5/0/0"}, "--split 0.5/0.5/0/0: has too many shares"),
        ({"split": "1e9999999"}, "--split 1e9999999: is not a list of shares"),
        ({"split": (0.8, 0.2)}, "split = (0.8, 0.2) is not valid"),
        ({"betas": (0.9, 0.999)}, "betas = (0.9, 0.999) is not valid"),
        ({"schedule": "step\n"}, "--schedule 'step\\n': is empty, or has spaces around it"),
        ({"checkpoint_every": ("s",)}, "--checkpoint-every 's': has no number"),
        ({"image_size": "8"}, "--image-size 8: is not an image size"),
    ],
)
def test_texts_of_another_form(options, error):
    kind = RuntimeOptions if "checkpoint_every" in options else Config
    with pytest.raises(UserError) as caught:
        kind(**options)
    assert str(caught.value).startswith(error) and caught.value.option == next(iter(options))


def test_programs_and_files_may_give_numbers_and_single_values(tmp_path):
    assert Config(split=0.8) == Config(split="0.8")
    assert RuntimeOptions(checkpoint_every=100) == RuntimeOptions(checkpoint_every=["100"])
    (tmp_path / "run.toml").write_text('split = 0.8\ncheckpoint-every = 100\ntracker = "tensorboard"\n')
    config, runtime = parse(["--config", str(tmp_path / "run.toml"), "--checkpoint-every", "5s"], framework="torch")
    assert (config.split, runtime.checkpoint_every) == ("0.8", ("100", "5s"))
    assert runtime.tracker == ("tensorboard",)


OPTIONS = {*Config.__dataclass_fields__, *RuntimeOptions.__dataclass_fields__}
WENT = [option for option in removed.TRAIN if option[2:].replace("-", "_") not in OPTIONS]


@pytest.mark.parametrize("option", WENT)
def test_an_option_that_went_says_what_to_use(tmp_path, option):
    (tmp_path / "run.toml").write_text(f"{option[2:]} = 1\n")
    keyword = {option[2:].replace("-", "_"): 1}
    for given in (
        lambda: parse([option], framework="torch"),
        lambda: parse([f"{option}=1"], framework="torch"),
        lambda: parse(["--config", str(tmp_path / "run.toml")], framework="torch"),
        lambda: Config(**keyword),
        lambda: RuntimeOptions(**keyword),
    ):
        with pytest.raises(UserError) as caught:
            given()
        assert str(caught.value).endswith(f" is no longer an option; {removed.TRAIN[option]}")
    with pytest.raises(TypeError):
        Config(nonsense=1)


def test_names_of_strategies_have_their_style():
    styles = [style_of(name) for name in (*OVER_HOROVOD, "module-kvstore-dist", "manual")]
    assert styles == ["", "keras-fit", "module", "ndarray", "module", ""]


def test_a_script_takes_validation_rows_by_the_option_and_no_test_rows():
    check_script("loop.py", False, Config(split="0.9/0.1"), RuntimeOptions())
    with pytest.raises(UserError, match=r"--split 0.8: loop.py has test rows of its own, or none; give TRAIN/VALIDAT"):
        check_script("loop.py", False, Config(split="0.8"), RuntimeOptions())


@pytest.mark.parametrize(
    ("strategy", "compression", "error"),
    [
        ("keras-fit", "fp16", ""),
        ("keras-fit", "int8", "--compression int8: --strategy keras-fit does not compress"),
        ("ring", "fp16", "--compression fp16: only --strategy horovod has it"),
        ("manual", "fp16", "--compression fp16: --strategy manual does not compress"),
    ],
)
def test_compression_of_styles(strategy, compression, error):
    try:
        Config(framework="tensorflow", strategy=strategy, compression=compression)
    except UserError as raised:
        assert error and str(raised).startswith(error)
    else:
        assert not error
