"""Checkpoints, images and downloads of others: harmful ones are rejected with a message, and run no code."""

import contextlib
import gzip
import hashlib
import json
import os
import pickle
import re

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.in_process import command
from support.jobs import ROOT
from support.mirror import Mirror
from support.networks import CIFAR_LENET, LENET
from support.untrusted import PASSWORD, Harm, changed_state, rewrite, save_checkpoint

from hvdtrain.datasets import downloads
from hvdtrain.datasets.formats import reading
from hvdtrain.datasets.formats.image_files import read_image
from hvdtrain.errors import UserError
from hvdtrain.interfaces.learner import Position
from hvdtrain.networks.record import shaped_to_record
from hvdtrain.runs import checkpoints
from hvdtrain.runs.checkpoints import Damaged
from hvdtrain.system.checkpoint_folder import MAX_BYTES
from hvdtrain.system.resources import memory_bytes


def test_no_file_is_unpickled_and_no_text_executed():
    """The package calls no function that could. (NumPy and PyTorch have safe variants.)"""
    forbidden = re.compile(
        r"pickle\.loads?\(|cloudpickle|joblib|marshal|shelve|allow_pickle=True"
        r"|torch\.load\((?!path, map_location=\"cpu\", weights_only=True\))"
        r"|yaml\.\w+"
        r"|load_model\(|(?<!\.)\beval\(|\bexec\(|shell=True|os\.system|extractall|mktemp\("
    )
    for path in (ROOT / "hvdtrain").rglob("*.py"):
        assert not forbidden.findall(path.read_text()), path
        assert re.findall(r"np\.load\((?!\w+, allow_pickle=False\))", path.read_text()) == [], path


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: rewrite(path, "state.json", b"[" * 100_000),
        lambda path: rewrite(path, "state.json", changed_state(path, position={**vars(Position()), "epoch": -1})),
        lambda path: rewrite(path, "state.json", b'{"score": ' + b"9" * 10_000 + b"}"),
        lambda path: rewrite(path, "weights.safetensors", b"\xff" * 8 + b"{}"),  # a header of 2^64 bytes
        lambda path: rewrite(path, "weights.safetensors", pickle.dumps(Harm(path.parent / "harm"))),
        lambda path: rewrite(path, "weights.safetensors", header_of(1 << 40)),
        lambda path: (path / checkpoints.MANIFEST).write_text('{"sha256": [], "bytes": {}}'),
        lambda path: os.truncate(path / checkpoints.MANIFEST, MAX_BYTES + 1),  # sparse: it takes no disk
        lambda path: os.truncate(path / "weights.safetensors", MAX_BYTES + 1),
        lambda path: larger_than_the_memory(path),
        lambda path: list_weights(path, {"weights-/../../x.safetensors": "0", "weights-2": "0"}),
        lambda path: list_weights(path, {f"weights-{i:05d}-of-20000.safetensors": "0" for i in range(1, 20_001)}),
        lambda path: list_weights(path, {"weights-00001-of-00002.safetensors": "0"}),
        lambda path: (path / checkpoints.MANIFEST).write_text('{"sha256": ["weights.safetensors"], "bytes": {}}'),
        lambda path: same_array_twice(path),
        lambda path: ((path / "weights.safetensors").unlink(), os.mkfifo(path / "weights.safetensors")),
    ],
    ids=range(16),
)  # fmt: skip
def test_a_malicious_checkpoint_is_rejected(tmp_path, harm):
    path = save_checkpoint(tmp_path)
    harm(path)
    with pytest.raises(Damaged):
        checkpoints.load(path)
    assert not (tmp_path / "harm").exists()


def larger_than_the_memory(path):
    """A valid file of zeros, which takes no disk, and whose checksum nobody waits for."""
    count = memory_bytes() // 4
    header = header_of(count)
    rewrite(path, "weights.safetensors", header)
    os.truncate(path / "weights.safetensors", len(header) + 4 * count)


def list_weights(path, sums):
    """A manifest that lists these files of weights, and the other files as they are."""
    others = {name: digest(path / name) for name in checkpoints.FILES[1:]}
    sizes = {file.name: file.stat().st_size for file in path.iterdir()}
    (path / checkpoints.MANIFEST).write_text(json.dumps({"sha256": others | sums, "bytes": sizes}))


def same_array_twice(path):
    """In two files that are each valid."""
    names = ("weights-00001-of-00002.safetensors", "weights-00002-of-00002.safetensors")
    for name in names:
        save_file({"w": np.zeros(1, np.float32)}, path / name)
    list_weights(path, {name: digest(path / name) for name in names})


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def header_of(count):
    """What a file of weights with so many numbers begins with."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}}).encode()
    return len(header).to_bytes(8, "little") + header


@pytest.mark.parametrize("given", ["predict {} image.png", "export {} model.onnx", "export {} model.pt2"])
def test_a_checkpoint_of_another_network_or_of_none_is_rejected(tmp_path, given):
    def check(path, problem):
        status, output = command(tmp_path, *given.format(path.name).split())
        assert status == 2 and problem in output

    other = shaped_to_record(CIFAR_LENET)
    for changes in ({"weights": {"w": np.zeros((2, 3), np.float32)}}, {"network": other}, {"classes": ("0",)}):
        check(save_checkpoint(tmp_path, **changes), "are not those of")
    for network in (5, [], {"task": 3}, {"task": None}):
        path = save_checkpoint(tmp_path)
        rewrite(path, "state.json", changed_state(path, network=network))
        check(path, "no intact checkpoint there")


def test_reading_an_image_starts_no_other_program(tmp_path):
    """Pillow would start Ghostscript for PostScript."""
    image = tmp_path / "image.png"
    image.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 28 28\n%%EndComments\nshowpage\n")
    with pytest.raises(UserError, match="cannot be read as an image"):
        read_image(image, LENET.input_shape, invert=False)


def test_downloads_and_decompression_are_limited_in_size(monkeypatch, caplog):
    for module in (reading, downloads):
        monkeypatch.setattr(module, "LARGEST", 1 << 20)
    bomb = gzip.compress(bytes(1 << 24))
    assert len(bomb) < 1 << 15
    monkeypatch.setattr(downloads, "ROUNDS", 1)
    with contextlib.closing(Mirror()) as mirror:
        mirror.files = {"bomb.gz": bomb, "long.gz": bytes(1 << 21)}
        base = mirror.url.replace("//", f"//me:{PASSWORD}@")
        with pytest.raises(UserError, match="no mirror has it complete") as refused:
            downloads._fetch("file.gz", [f"{base}bomb.gz", f"{base}long.gz"], "0" * 64)
    assert "unpacks to more than 1048576 bytes" in caplog.text
    assert "is longer than 1048576 bytes" in str(refused.value)
    assert PASSWORD not in caplog.text + str(refused.value)


def test_the_memory_limit_is_at_most_half_of_the_machine_s():
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < reading.MEMORY <= whole // 2
