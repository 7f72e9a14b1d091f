"""Parts without processes: options, schedule, environment, metrics, and the direction of imports."""

import ast
import json
import subprocess
import sys

import numpy as np
import pytest
from support.jobs import ROOT

from hvdtrain.cli.training_options import parse
from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.config.options import Config
from hvdtrain.config.recipes import RECIPES, from_recipe
from hvdtrain.config.record import from_record, to_record
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.networks.initial_weights import initial_weights
from hvdtrain.networks.registry import NETWORKS
from hvdtrain.runs import metrics
from hvdtrain.system import rank_info, slurm
from hvdtrain.training.schedule import learning_rate


def rates(steps, size=1, **options):
    config = Config(**options)
    return [learning_rate(config, step, steps // config.epochs, size) for step in range(steps)]


def test_warm_up_reaches_the_peak_in_equal_steps():
    assert rates(8, epochs=2, lr=0.4, warmup_epochs=1, schedule="constant") == pytest.approx(
        [0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4, 0.4]
    )


def test_step_schedule():
    got = rates(8, epochs=4, lr=1.0, warmup_epochs=0, schedule="step", lr_step_epochs=2, lr_gamma=0.5)
    assert got == pytest.approx([1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5])


def test_cosine_falls_to_nearly_zero():
    got = rates(100, epochs=10, lr=1.0, warmup_epochs=0, schedule="cosine")
    assert got[0] == 1
    assert got[50] == pytest.approx(0.5)
    assert 0 < got[-1] < 0.001
    assert got == sorted(got, reverse=True)


def test_linear_scaling():
    assert rates(1, size=4, epochs=1, lr=0.1, warmup_epochs=0, batch_scope="per-rank") == [pytest.approx(0.4)]
    assert rates(1, size=4, epochs=1, lr=0.1, warmup_epochs=0) == [0.1]
    assert Config(batch_scope="per-rank", batch_size=32).global_batch(4) == 128
    assert Config(batch_size=32).global_batch(4) == 32


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ("none", 0, 1, 0)),
        ({"HOROVOD_RANK": "3", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "1"}, ("horovodrun", 3, 4, 1)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, ("mpirun", 1, 2, 0)),
        # The batch node's variables, inherited under horovodrun inside Slurm, must not win.
        (
            {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"},
            ("horovodrun", 1, 2, 0),
        ),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1"}, ("srun", 5, 8, 1)),
    ],
)
def test_who_am_i(variables, expected):
    assert tuple(rank_info.detect(variables)) == expected


def test_an_environment_that_makes_no_sense_is_refused():
    with pytest.raises(UserError, match="HOROVOD_RANK"):
        rank_info.detect({"HOROVOD_RANK": "x", "HOROVOD_SIZE": "2"})


def test_recipes_are_defaults_and_options_win():
    config, runtime = parse(["--recipe", "book", "--lr", "0.3", "--offline"], "p", "mxnet", speaks=True)
    assert (config.data, config.batch_size, config.lr, config.framework) == (
        "fashion-mnist",
        256,
        0.3,
        "mxnet",
    )
    assert runtime.offline


@pytest.mark.parametrize("name", RECIPES)
def test_a_record_gives_the_same_options(name):
    config = from_recipe(name)
    assert from_record(json.loads(json.dumps(to_record(config)))) == config
    assert json.dumps(to_record(RuntimeOptions()))


def test_first_weights():
    book = initial_weights(NETWORKS["lenet"], "book", 0)
    assert book["dense1.weight"].std() == pytest.approx(0.01, rel=0.01)
    assert not book["conv1.bias"].any()
    xavier = initial_weights(NETWORKS["lenet"], "xavier", 0)
    limit = np.sqrt(6 / (800 + 128))
    assert np.abs(xavier["dense1.weight"]).max() == pytest.approx(limit, rel=1e-3)
    assert xavier["conv2.weight"].dtype == np.float32
    other = initial_weights(NETWORKS["lenet"], "xavier", 1)
    assert (xavier["conv1.weight"] != other["conv1.weight"]).any()


class Pretend(SingleProcess):
    """Rank 1 of 3, whose neighbours say the same, except for a first bad loss of their own."""

    rank, size = 1, 3

    def sum(self, values):
        others = np.zeros_like(values)
        others[:2] = 2 * values[:2]
        others[2] = 12  # rank 0: step 11
        others[4] = 9  # rank 2: step 8
        return values + others


def test_the_first_bad_loss_of_any_rank_is_named():
    meter = metrics.LossMeter(Pretend())
    for step, loss in enumerate([1.0, 3.0, float("nan"), 2.0], start=8):
        meter.add(step, loss)
    interval = meter.join()
    assert (interval.bad_rank, interval.bad_step) == (2, 8)
    solo = metrics.LossMeter(SingleProcess())
    solo.add(0, 1.0)
    solo.add(1, 2.0)
    assert solo.join() == (1.5, -1, -1, -1)


def test_scores_and_per_class_accuracy():
    scores = metrics.join_scores(SingleProcess(), 6.0, np.array([[3.0, 1.0], [0.0, 2.0]]))
    assert scores[:2] == (1.0, 5 / 6)
    assert scores.per_class() == [0.75, 1.0]


def test_a_line_cut_short_by_a_kill_is_passed_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "train", "step": 1, "loss": 2}\n{"kind": "train", "step": 1, "loss": 3}\n{"kind": "tr')
    assert metrics.read(path) == [{"kind": "train", "step": 1, "loss": 3}]


# Each folder imports only folders before it. Files directly in hvdtrain/ are named here, too.
ORDER = [
    "errors",
    "system",
    "networks",
    "config",
    "interfaces",
    "collectives",
    "datasets",
    "runs",
    "frameworks",
    "training",
    "launch",
    "doctor",
    "report",
    "bench",
    "cli",
    "entry points",
]
ENTRY_POINTS = {"__init__", "__main__", "torch_lenet", "mxnet_lenet", "tensorflow_lenet"}
FRAMEWORK_PACKAGES = {"torch", "mxnet", "tensorflow", "horovod"}
STANDARD_LIBRARY_ONLY = {"errors", "system"}
NOTHING_OF_TRAINING = {"launch": {"errors", "system"}}


def folder_of(module):
    """The folder of `hvdtrain.<folder>...` in ORDER; for a file directly in hvdtrain/, its name."""
    name = module.removeprefix("hvdtrain").lstrip(".").partition(".")[0] or "__init__"
    return "entry points" if name in ENTRY_POINTS else name


def imports_of(path):
    """Modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "hvdtrain":
            yield from (f"hvdtrain.{alias.name}" for alias in node.names if alias.name != "__version__")
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_imports_descend_from_folder_to_folder():
    package = ROOT / "hvdtrain"
    for path in package.rglob("*.py"):
        own = folder_of(".".join(path.relative_to(package.parent).with_suffix("").parts))
        for module in imports_of(path):
            top = module.partition(".")[0]
            where = f"{path.relative_to(package.parent)} imports {module}"
            if top == "hvdtrain":
                other = folder_of(module)
                assert other == own or module == "hvdtrain" or ORDER.index(other) < ORDER.index(own), where
                assert other == own or other in NOTHING_OF_TRAINING.get(own, {other}), where
            else:
                assert own == "frameworks" or top not in FRAMEWORK_PACKAGES, where
                assert own not in STANDARD_LIBRARY_ONLY or top in sys.stdlib_module_names, where


def test_help_imports_no_framework():
    code = "import sys; from hvdtrain.__main__ import main; main(['--help']); print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert not {"torch", "mxnet", "tensorflow", "numpy"} & set(output.split("\n")[-2].split())


@pytest.mark.parametrize(
    ("nodes", "hosts"),
    [
        ("node1", ["node1"]),
        ("node[01-03,07],other", ["node01", "node02", "node03", "node07", "other"]),
        ("a-b[7],c", ["a-b7", "c"]),
        ("r[1-2]n[8-10]x", ["r1n8x", "r1n9x", "r1n10x", "r2n8x", "r2n9x", "r2n10x"]),
    ],
)
def test_hosts_of_a_slurm_node_list(nodes, hosts):
    assert slurm.hostnames(nodes) == hosts


@pytest.mark.parametrize("nodes", ["", ",", "a,", "a[", "a[]", "a[1-]", "a[3-1]", "a[x]", "a[1-999999999]", "a]b"])
def test_what_is_no_slurm_node_list(nodes):
    with pytest.raises(UserError, match="as Slurm writes it"):
        slurm.hostnames(nodes)


def test_where_rank_0_is_met():
    assert rank_info.rendezvous({"MASTER_ADDR": "h", "MASTER_PORT": "5"}) == ("h", 6)
    tf_config = json.dumps({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}})
    assert rank_info.rendezvous({"TF_CONFIG": tf_config}) == ("a", 1)
    assert rank_info.detect({"TF_CONFIG": tf_config}) == ("TF_CONFIG", 1, 2, 0)
    slurm = {"SLURM_STEP_NODELIST": "n[2-3]", "SLURM_JOB_ID": "20005", "SLURM_PROCID": "0"}
    assert rank_info.rendezvous(slurm) == ("n2", 20006)
    for broken in ("", "{}", "[]", '{"cluster": {"worker": ["a"]}, "task": {"index": 0}}'):
        if broken:
            with pytest.raises(UserError, match="TF_CONFIG is not what MultiWorkerMirroredStrategy expects"):
                rank_info.detect({"TF_CONFIG": broken})
