"""Networks in files: built-in ones, TOML and Python files, JSON records, and every kind of mistake in them."""

import json
import os

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import mixed_networks
from support.errors import refused
from support.mixed_networks import NETWORKS as MIXED_NETWORKS
from support.networks import shaped
from support.random_networks import random_network

import hvdtrain
from hvdtrain.networks.description import Network
from hvdtrain.networks.layers import CLASSES, Conv, Dense, Flatten, Relu, Residual
from hvdtrain.networks.record import from_record, shaped_from_record, shaped_to_record, to_record
from hvdtrain.networks.registry import NETWORKS, find_network

SMALL = """
input_shape = [1, 8, 8]

[[layers]]
type = "residual"
body = [{type = "conv", outputs = 1, kernel = 3, padding = 1}]

[[layers]]
type = "flatten"

[[layers]]
type = "dense"
outputs = "classes"
"""
NETWORK = Network((Residual((Conv(1, 3, padding=1),)), Flatten(), Dense(CLASSES)), (1, 8, 8))


def rejected(model):
    text = str(refused(lambda: shaped(find_network(str(model)), (1, 28, 28))))
    assert text.startswith(f"--model {model}: ") or text.startswith("--model mine: ")
    return text


def test_built_in_networks():
    assert all(find_network(name) is network for name, network in NETWORKS.items())
    assert hvdtrain.Network is Network
    with pytest.raises(AttributeError, match="has no attribute 'Networks'"):
        hvdtrain.Networks  # noqa: B018


def test_toml(tmp_path, monkeypatch):
    (tmp_path / "net.toml").write_text(SMALL)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_network(str(tmp_path / "net.toml")) == find_network("~/net.toml") == NETWORK
    (tmp_path / "bom.toml").write_text(SMALL, encoding="utf-8-sig")
    assert find_network(str(tmp_path / "bom.toml")) == NETWORK


def test_python_file(tmp_path):
    assert find_network(f"{mixed_networks.__file__}:MIXED") == mixed_networks.MIXED
    (tmp_path / "blocks.py").write_text("from hvdtrain.networks.layers import Conv\nBODY = [Conv(1, 3, padding=1)]\n")
    (tmp_path / "net.py").write_text(
        "import numpy as np\n"
        "from hvdtrain import Network\n"
        "from hvdtrain.networks.layers import CLASSES, Dense, Flatten, Residual\n"
        "from blocks import BODY\n"
        "NETWORK = Network([Residual(BODY), Flatten(), Dense(CLASSES)], [1, 8, np.int64(8)])\n"
    )
    assert find_network(f"{tmp_path}/net.py:NETWORK") == NETWORK, "lists, and numbers of NumPy, are taken"


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("lenett", "no such network (did you mean lenet?); give lenet, cifar_lenet, mlp, resnet20, a file NETWORK"),
        ("", "no such network"),
        ("net.py", "net.py:CLASS"),
        ("net.py:", "no such network"),
        (".toml", "cannot be read"),  # a folder
        ("pipe.toml", "cannot be read (not a regular file)"),
        ("nowhere.toml", "cannot be read (No such file or directory)"),
        ("x\0y.toml", ""),
        ("nowhere.py:NETWORK", "there is no file nowhere.py; give FILE.py:NAME"),
    ],
)
def test_unknown_names(model, problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".toml").mkdir()
    os.mkfifo(tmp_path / "pipe.toml")
    assert problem in rejected(model)


IMPORTS = "from hvdtrain import Network\nfrom hvdtrain.networks.layers import *\n"
DENSE = '[[layers]]\ntype = "dense"\noutputs = '


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("net.toml", "x = " + "[" * 5000, "is not TOML"),
        ("net.toml", "", "has no list of layers; correct the network"),
        ("net.toml", f"{DENSE}0x{'f' * 9000}", "outputs: Expected `int` <= 2147483647"),
        ("net.toml", f"{DENSE}10", "layer 1 (dense): it takes features, but gets images of 1x28x28"),
        ("net.toml", SMALL, "takes images of 1x8x8, but"),
        ("net.toml", " " * (1 << 21), "cannot be read (larger than 32 KiB)"),
        ("net.py:NETWORK", "", "has no NETWORK"),
        ("net.py:NETWORK", "NETWORK = 5", "is 5; give a hvdtrain.Network"),
        ("net.py:NETWORK", f"{IMPORTS}NETWORK = (", "line 3: SyntaxError"),
        ("net.py:NETWORK", "import no_such_module", "line 1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("net.py:NETWORK", "def f():\n    raise ValueError('two\\nlines')\nf()", "line 2: ValueError: two lines"),
        ("net.py:NETWORK", f"{IMPORTS}NETWORK = Network(5)", "is Network(layers=5"),
        ("net.py:NETWORK", f"{IMPORTS}NETWORK = Network((Residual(Relu()),))", "body: Relu() is not a list of layers"),
        ("net.py:NETWORK", f"{IMPORTS}NETWORK = Network((Dropout(float('nan')),))", "rate: Expected `float`"),
    ],
)
def test_mistakes_in_files(name, content, problem, tmp_path):
    (tmp_path / name.partition(":")[0]).write_text(content)
    assert problem in rejected(tmp_path / name)


def test_a_record_has_the_values_that_are_not_the_default():
    layers = (Conv(4, 3, padding=1), Residual((Relu(),)), Residual(()), Dense("classes", name="last"))
    assert to_record(Network(layers, (1, 8, 8))) == {
        "input_shape": [1, 8, 8],
        "layers": [
            {"type": "conv", "outputs": 4, "kernel": 3, "padding": 1},
            {"type": "residual", "body": [{"type": "relu"}]},
            {"type": "residual", "body": []},
            {"type": "dense", "outputs": "classes", "name": "last"},
        ],
    }


@settings(derandomize=True, max_examples=60, database=None)
@given(st.integers(0, 10**6), st.integers(1, 5))
@example(0, 0)
def test_networks_are_read_as_they_were_written(seed, classes):
    for network in [*NETWORKS.values(), *MIXED_NETWORKS.values()] if not classes else []:
        assert from_record(json.loads(json.dumps(to_record(network)))) == network
    network = random_network(seed, classes or 1)
    record = json.loads(json.dumps(shaped_to_record(network)))
    assert shaped_from_record(record, "random") == network
    assert shaped_to_record(shaped_from_record(record, "random")) == record


LAYER = {"type": "conv", "outputs": 4, "kernel": 3}
DEEP = {"type": "relu"}
for _ in range(25):
    DEEP = {"type": "residual", "body": [DEEP]}


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (5, "has no list of layers"),
        ({"layers": []}, "has no layers, or more than 10000"),
        ({"layers": [{"type": "relu"}] * 10_001}, "has no layers, or more than 10000"),
        ({"layers": [DEEP]}, "has residual layers within each other, deeper than 20"),
        ({"layers": [LAYER], "classes": 3}, "has an unknown key 'classes'; it may have input_shape and layers"),
        ({"layers": [LAYER], "input_shape": [1, 28]}, "input_shape is [1, 28], not three numbers"),
        ({"layers": [LAYER, 5]}, "layer 2: 5 is not a layer with a type"),
        ({"layers": [{"type": "covn"}]}, "layer 1: no type 'covn' (did you mean conv?); there are conv, dense"),
        ({"layers": [{"type": "dense"}]}, "layer 1 (dense): Object missing required field `outputs`"),
        ({"layers": [{"type": "relu", "slope": 1.0}]}, "layer 1 (relu): no value 'slope'"),
        ({"layers": [{**LAYER, "stride": 10**5000}]}, "layer 1 (conv): stride: Expected `int` <= 2147483647"),
        ({"layers": [{**LAYER, "bias": 1}]}, "layer 1 (conv): bias: Expected `bool`, got `int`"),
        ({"layers": [{"type": "dense", "outputs": "class"}]}, "layer 1 (dense): outputs: Invalid enum value 'class'"),
        ({"layers": [{"type": "residual", "body": 5}]}, "layer 1 (residual), body: 5 is not a list of layers"),
        (
            {"layers": [LAYER, {"type": "residual", "body": [], "shortcut": [{"type": "dense", "outputs": 0.5}]}]},
            "layer 2 (residual), shortcut, layer 1 (dense): outputs: Expected `int | str`, got `float`",
        ),
    ],
)
def test_other_values_are_rejected(record, problem):
    with pytest.raises(ValueError) as raised:
        from_record(record)
    assert problem in str(raised.value) and "\n" not in str(raised.value)


SHAPED = shaped_to_record(shaped("lenet"))


@pytest.mark.parametrize(
    "record",
    [None, [], {}, {**SHAPED, "classes": True}, {**SHAPED, "classes": 10**30}, {**SHAPED, "input_shape": "1x28x28"},
     {**SHAPED, "input_shape": [1, 0, 28]}, {**SHAPED, "description": None}],
)  # fmt: skip
def test_a_record_of_a_network_on_data_is_checked(record):
    with pytest.raises(ValueError, match=r"^has no |is no "):
        shaped_from_record(record, "mine")
