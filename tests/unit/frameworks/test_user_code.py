"""Mistakes in a task: one sentence that names the method, in every framework, before training."""

import contextlib
import re
from bdb import BdbQuit
from pathlib import Path

import numpy as np
import pytest
from support.learners import TASKS, task_class
from support.model_steps import of_pieces
from support.user_loop_runs import starter

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.frameworks.preparation import prepare
from hvdtrain.frameworks.registry import build_learner
from hvdtrain.tasks.user import make_task

OTHER = {"torch": "tensorflow", "tensorflow": "torch", "mxnet": "torch"}
FOREIGN = {"torch": "torch.nn.modules.container", "tensorflow": "keras.src.engine.sequential"}
"""Where a framework's Sequential is."""


def failing(self, outputs, values):
    return outputs["price"] - values  # the line that fails


def one_loss(self, outputs, values):
    return (outputs["value"] - values)[:1]


def with_labels(change):
    """Changes of Classifier: its rows with other labels."""

    def data(self):
        return tuple((numbers, change(kinds)) for numbers, kinds in type(self).__mro__[1].data(self))

    return {"data": data, "augment": None}


MATRIX = pytest.mark.matrix


SAID = "the model changes {} when it is called, so each shard would begin with another one; leave out --shards"


@pytest.mark.parametrize("options", [{}, {"shards": 2}])
@pytest.mark.parametrize(
    ("framework", "piece", "said"),
    [
        ("torch", "normalized weight", f"step(): {SAID.format('2.layer.weight')}"),
        ("torch", "largest norm", "setup(): the model changes 2.table.weight when it is"),
        ("mxnet", "normalized weight", f"step(): {SAID.format('2.layer.weight')}"),
    ],
)
def test_a_script_whose_model_changes_its_weights_is_refused_in_shards(framework, piece, said, options, tmp_path):
    drawn = of_pieces(framework, piece)
    refused = pytest.raises(UserError, match=re.escape(said)) if options else contextlib.nullcontext()
    with refused, starter(tmp_path, framework)(**options) as run:
        drawn.kinds.script(drawn, run)


@pytest.fixture(params=["torch", pytest.param("tensorflow", marks=MATRIX), pytest.param("mxnet", marks=MATRIX)])
def framework(request):
    return request.param


@pytest.fixture
def build(framework):
    """Make a class of the framework's file a task, with these changes, and build its learner."""
    prepare(framework)

    def build(name, changes=None, **options):
        base = "Classifier" if "Labels" in name else "Regression"
        kind = type(name, (task_class(framework, base),), changes) if changes else task_class(framework, name)
        file = __file__ if changes else f"{TASKS}/of_{framework}.py"
        task = make_task(f"{file}:{name}", kind)
        config = Config(**{"framework": framework, "strategy": "single", "model": task.name, **options})
        return build_learner(config, task, None, RuntimeOptions(device="cpu"))

    return build


ODD = with_labels(lambda kinds: np.append(kinds[:-1], 5))
SHORT = with_labels(lambda kinds: kinds[:, None].astype(np.int32))
WIDE = np.zeros((128, 4))
WIDE_ROWS = r"fails on inputs \(64, 4\) .*float64.*let data\(\) return float32 rows, by .astype\(np.float32\)"
LINE = r"losses\(\) failed in line (\d+) of test_user_code.py \(KeyError: 'price'\); correct the task"


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("OneLoss", {"losses": one_loss}, r"losses\(\) returned a tensor of shape \(1,\) for 4 rows; return one value"),
        ("FailingLoss", {"losses": failing}, LINE),
        ("ListMetrics", {"metrics": lambda *given: [given]}, r"metrics\(\) returned list; return a dict"),
        ("NoLoss", {"losses": None}, r"model\(\) has outputs and targets for which there is no default loss"),
        ("OddLabels", ODD, "the label of training row 127 is 5, but the model has 5 outputs; correct the labels"),
        ("ShortLabels", SHORT, r"no default loss: \(4, 5\) .*float32 and \(4, 1\) .*int32; give the task a method"),
        ("NoModel", {"model": None}, r"has no method model; give the task that method"),
        ("Wide", {"data": lambda task: ((WIDE, WIDE), (WIDE, WIDE)), "inputs": 1}, WIDE_ROWS),
        ("OneInput", {"inputs": 1}, r"model\(\) returned a model that fails on inputs \(64, 4\) .*float32"),
    ],
)
def test_a_mistake_is_one_sentence(build, name, changes, message):
    with pytest.raises(UserError, match=message) as error:
        build(name, changes)
    assert "\n" not in str(error.value) and name in str(error.value)
    if message is LINE:
        number = int(re.search(LINE, str(error.value))[1])
        assert "the line that fails" in Path(__file__).read_text().splitlines()[number - 1]


@pytest.mark.parametrize("method", ["data", "losses", "metrics", "augment"])
def test_the_end_of_a_debugger_is_no_mistake_of_the_task(build, method):
    def quit_debugger(*_):
        raise BdbQuit

    with pytest.raises(BdbQuit):
        build("Debugged", {method: quit_debugger})


RETURNS = {
    "None": None, "text": "mse", "number": 3.5, "empty list": [], "empty dict": {}, "nested": [[1], [2, 3]],
    "object": object(), "class": dict, "generator": (number for number in range(4)), "array of texts": np.array(["a"]),
}  # fmt: skip
"""What no method of a task may return, but {} from metrics."""


@pytest.mark.parametrize("value", RETURNS.values(), ids=RETURNS)
@pytest.mark.parametrize("method", ["data", "model", "losses", "metrics", "augment"])
def test_a_wrong_value_of_any_method_is_one_sentence(build, method, value):
    if (method, value) == ("metrics", {}):
        pytest.skip("no metrics")
    changes = {method: lambda *_: value}
    with pytest.raises(UserError) as error:
        build("Wrong", {**changes, "augment": changes.get("augment")})
    assert "\n" not in str(error.value) and "Wrong: " in error.value.reason
    assert {"data": "rows", "model": "model"}.get(method, f"{method}()") in str(error.value)


def test_a_model_of_another_framework_names_that(build, framework):
    expected = rf"model\(\) returned Sequential, and --framework is {framework}; use --framework {OTHER[framework]}"
    model = type("Sequential", (), {"__module__": FOREIGN[OTHER[framework]]})
    with pytest.raises(UserError, match=expected):
        build("Foreign", {"model": lambda self: model()})


def test_a_model_of_keras_3_is_no_model_of_tensorflow(build, framework):
    if framework != "tensorflow":
        pytest.skip("of Keras")
    keras = pytest.importorskip("keras", "3", exc_type=ImportError)
    with pytest.raises(UserError, match=r"model\(\) returned Sequential, a model of Keras 3; make it by tf.keras"):
        build("Later", {"model": lambda self: keras.Sequential([])})


@pytest.mark.parametrize(
    ("style", "of"), [("keras-fit", "tensorflow"), ("module", "mxnet"), ("ndarray-single", "mxnet")]
)
def test_other_styles_do_not_train_tasks(build, framework, style, of):
    if framework != of:
        pytest.skip("a style of another framework")
    with pytest.raises(UserError, match=f"--strategy {style}: it trains networks as data only"):
        build("Regression", strategy=style)
