"""--model: built-in networks, TOML and Python files, and every kind of mistake in them."""

import os

import pytest
from support import mixed_networks
from support.networks import shaped

import hvdtrain
from hvdtrain.errors import UserError
from hvdtrain.networks.description import Network
from hvdtrain.networks.layers import CLASSES, Conv, Dense, Flatten, Residual
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
    """The one-line error of a value of --model."""
    with pytest.raises(UserError) as raised:
        shaped(find_network(str(model)))
    text = str(raised.value)
    assert raised.value.remedy and raised.value.exit_status == 2 and "\n" not in text
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
        (
            "lenett",
            "no such network (did you mean lenet?); give lenet, cifar_lenet, mlp, resnet20, a file NETWORK.toml",
        ),
        ("", "no such network"),
        ("net.py", "net.py:CLASS"),
        ("net.py:", "no such network"),
        ("net.py:a.b", "no such network"),
        ("../lenet", "no such network"),
        ("x\0y", "no such network"),
        ("nowhere.toml", "cannot be read (No such file or directory)"),
        ("x\0y.toml", ""),
        ("nowhere.py:NETWORK", "there is no file nowhere.py; give FILE.py:NAME"),
    ],
)
def test_unknown_names(model, problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert problem in rejected(model)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff", "is not valid TOML"),
        (b"layers = ", "is not valid TOML"),
        (b"x = " + b"[" * 5000, "is not valid TOML"),
        (b"", "has no list of layers; correct the file"),
        (b"layers = [5]", "layer 1: 5 is not a layer with a type"),
        (b'[[layers]]\ntype = "conv"\noutputs = 0x' + b"f" * 9000 + b"\nkernel = 3", "outputs is too large a value"),
        (b'[[layers]]\ntype = "dense"\noutputs = 1979-05-27', "layer 1 (dense): outputs is datetime.date(1979, 5, 27)"),
        (b'[[layers]]\ntype = "dense"\noutputs = 10', "layer 1 (dense): it takes features, but gets images of 1x28x28"),
        (SMALL.encode(), "takes images of 1x8x8, but"),
        (b" " * (1 << 21), "cannot be read (larger than 32 KiB)"),
    ],
)
def test_mistakes_in_toml(content, problem, tmp_path):
    (tmp_path / "net.toml").write_bytes(content)
    with pytest.raises(UserError) as raised:
        find_network(str(tmp_path / "net.toml")).for_data((1, 28, 28), 10, str(tmp_path / "net.toml"))
    text = str(raised.value)
    assert text.startswith(f"--model {tmp_path}/net.toml: ") and problem in text and "\n" not in text


def test_what_is_no_file(tmp_path):
    (tmp_path / "net.toml").mkdir()
    assert "cannot be read" in rejected(tmp_path / "net.toml")
    os.mkfifo(tmp_path / "pipe.toml")
    assert "cannot be read (not a regular file)" in rejected(tmp_path / "pipe.toml")


IMPORTS = "from hvdtrain import Network\nfrom hvdtrain.networks.layers import *\n"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "has no NETWORK"),
        ("NETWORKS = 5", "has no NETWORK (did you mean NETWORKS?)"),
        ("NETWORK = 5", "is of type int; give a hvdtrain.Network"),
        (IMPORTS + "NETWORK = Network", "is of type type"),
        (IMPORTS + "NETWORK = (", "line 3: SyntaxError"),
        ("\0", "source code string cannot contain null bytes"),
        ("import no_such_module", "line 1: ModuleNotFoundError: No module named 'no_such_module'"),
        (IMPORTS + "NETWORK = Network((Conv(4),))", "line 3: TypeError"),
        ("def f():\n    raise ValueError('two\\nlines')\nf()", "line 2: ValueError: two lines"),
        ("raise SystemExit(0)", "SystemExit"),
        (IMPORTS + "NETWORK = Network(5)", "its layers are of type int"),
        (IMPORTS + "NETWORK = Network(())", "has no layers"),
        (IMPORTS + "NETWORK = Network((Conv('4', 3),))", "layer 1 (conv): outputs is '4', not an integer"),
        (IMPORTS + "NETWORK = Network((Conv(4, 3, stride=1.5),))", "layer 1 (conv): stride is 1.5, not an integer"),
        (IMPORTS + "NETWORK = Network((Relu,))", "is not a layer"),
        (
            IMPORTS + "NETWORK = Network((Residual(Relu()),))",
            "layer 1 (residual): body is Relu(), not a list",
        ),
        (IMPORTS + "NETWORK = Network((Residual((5,)),))", "layer 1 (residual), body, layer 1: 5 is not a layer"),
        (IMPORTS + "NETWORK = Network((Dropout(float('nan')), Flatten(), Dense(CLASSES)))", "rate is nan"),
        (IMPORTS + "NETWORK = Network((Flatten(), Dense(CLASSES)), 28)", "input_shape is 28, not three numbers"),
    ],
)
def test_mistakes_in_python(content, problem, tmp_path):
    (tmp_path / "net.py").write_text(content)
    assert problem in rejected(f"{tmp_path}/net.py:NETWORK")
