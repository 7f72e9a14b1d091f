"""Weights that a run begins with: which names are taken, what is said, and files that cannot be read."""

import argparse
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from hvdtrain.config.options import Config
from hvdtrain.errors import UserError
from hvdtrain.training.starting_weights import _arrays, matched

MODEL = {
    "first.weight": np.zeros((3, 2), np.float32),
    "first.count": np.zeros((), np.int64),
    "last.weight": np.zeros((2, 3), np.float32),
    "last.bias": np.zeros(2, np.float32),
}


def test_the_last_layer_may_have_another_shape_and_the_rest_is_said():
    given = {"first.weight": np.ones((3, 2)), "last.weight": np.ones((9, 3)), "last.bias": np.ones(9)}
    given["other"] = np.ones(1)
    found = matched(given, MODEL, "file")
    assert not found.is_complete and found.weights.keys() == {"first.weight"}
    assert found.weights["first.weight"].dtype == np.float32
    said = ("1 of the model's 4 arrays", "2 of its last layer have another shape (last.bias, last.weight)")
    said += ("1 are not there (first.count)", "1 there are not the model's (other)")
    assert [text for text in said if text not in found.text] == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"first.weight": np.ones((2, 3))}, "first.weight is float64[2, 3] there, and [3, 2] in the model"),
        ({"first.weight": np.ones((3, 2), np.complex64)}, "first.weight is complex64[3, 2] there"),
        ({"conv": np.ones(1)}, "no name fits (it has conv, and the model first.count"),
        ({"last.bias": np.ones(7)}, "no name fits"),
        ({}, "no name fits"),
    ],
)
def test_what_does_not_fit(given, message):
    with pytest.raises(UserError) as error:
        matched(given, MODEL, "file")
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "_orig_mod.module._orig_mod."]
)
@pytest.mark.parametrize("own", ["", "module.", "module._orig_mod."])
def test_prefixes_of_wrappers_do_not_count(prefix, own):
    """In any order and number, unless the model has them itself."""
    model = {f"{own}{name}": value for name, value in MODEL.items()}
    found = matched({f"{prefix}{name}": value for name, value in model.items()}, model, "file")
    assert found.is_complete and found.weights.keys() == model.keys()


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b'\x08\0\0\0\0\0\0\0{"a":{}}'])
@pytest.mark.parametrize("name", ["w.safetensors", "w.pt", "w", "w.csv"])
def test_files_of_other_content_give_one_line(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as error:
        _arrays(tmp_path / name, Config())
    assert f"--weights {tmp_path / name}: " in str(error.value) and "\n" not in str(error.value)


def test_safetensors_are_read_and_what_cannot_be_is_an_error(tmp_path):
    save_file({"a": np.ones(2, np.float32)}, tmp_path / "w.safetensors")
    assert _arrays(tmp_path / "w.safetensors", Config())["a"].tolist() == [1, 1]
    for suffix in (".safetensors", ".pt", ""):
        with pytest.raises(UserError, match="nothing"):
            _arrays(Path(f"nothing{suffix}"), Config())
    with pytest.raises(UserError, match="--framework is mxnet"):
        _arrays(Path("w.pth"), Config(framework="mxnet"))


@pytest.mark.needs("torch")
def test_bfloat16_is_read_in_pytorch(tmp_path):
    import torch
    from safetensors.torch import save_file

    from hvdtrain.frameworks.torch.state_dicts import load_safetensors

    save_file({"a": torch.full((2,), 1.5, dtype=torch.bfloat16)}, tmp_path / "half.safetensors")
    array = load_safetensors(tmp_path / "half.safetensors")["a"]
    assert array.dtype == np.float32 and array.tolist() == [1.5, 1.5]


class Objects:
    """What a file that torch.save() wrote may hold besides tensors; of Lightning, also a text with its version."""


@pytest.mark.needs("torch")
def test_files_with_objects_say_what_to_save(tmp_path):
    import torch

    model = torch.nn.Linear(2, 3)
    state = {"state_dict": model.state_dict(), "pytorch-lightning_version": "2.5", "epoch": 3}
    for name, content, said in (
        ("lightning.ckpt", {**state, "hyper_parameters": argparse.Namespace(a=1)}, r"objects \(argparse.Namespace\)"),
        ("lightning.pt", {**state, "callbacks": {"a": Objects()}}, r"objects \(\w.*.Objects\)"),
        ("model.pth", model, r"objects \(torch.nn.modules.linear.Linear\)"),
        ("script.pt", torch.jit.script(model), r"objects \(TorchScript\)"),
        ("cut.pt", b"PK\x03\x04 and no more", "no state dict that PyTorch can read"),
    ):
        if isinstance(content, bytes):
            (tmp_path / name).write_bytes(content)
        else:
            (torch.jit if "script" in name else torch).save(content, tmp_path / name)
        with pytest.raises(UserError, match=rf"{name}: it holds {said}.*: save model.state_dict\(\) alone") as error:
            _arrays(tmp_path / name, Config())
        assert str(error.value).isprintable() and "weights_only" not in str(error.value)
    torch.save(state, tmp_path / "plain.ckpt")
    assert _arrays(tmp_path / "plain.ckpt", Config()).keys() == {"weight", "bias"}
