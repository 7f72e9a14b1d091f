"""Networks that users describe in TOML, and those of checkpoints and records, which come from anywhere."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from support.mixed_networks import MIXED
from support.networks import LENET_RECORD, shaped

from fuzz.inputs import TOO_DEEP, json_like, text_like
from fuzz.properties import FUZZ, folder_of, rejects_cleanly
from hvdtrain.networks.description import Network, ShapedNetwork
from hvdtrain.networks.record import from_record, shaped_from_record, shaped_to_record, to_record
from hvdtrain.networks.registry import find_network
from hvdtrain.tasks.registry import recorded_network

TOML = """
input_shape = [1, 8, 8]
[[layers]]
type = "residual"
body = [{type = "conv", outputs = 4, kernel = 3, padding = 1, groups = 1, bias = false}, {type = "batch_norm"}]
shortcut = [{type = "conv", outputs = 4, kernel = 1, name = "beside"}]
[[layers]]
type = "pool"
reduction = "max"
size = 2
[[layers]]
type = "dropout"
rate = 0.5
[[layers]]
type = "global_average_pool"
[[layers]]
type = "dense"
outputs = "classes"
"""
PIECES = ("[[layers]]", "[layers]", '"""', "{", "}", "[", "]", "=", "0x" + "f" * 5000, "inf", "nan", "1e400", "-",
          "a.b", '"classes"', '"relu"', "true", "1979-05-27", "body", "#")  # fmt: skip


@FUZZ
@given(text_like((TOML,), PIECES))
@example('[[layers]]\ntype = "batch_norm"\ninitial = 0x' + "f" * 5000)
@example('[[layers]]\ntype = "dense"\noutputs = 0x' + "f" * 5000)
def test_network_toml(text: str) -> None:
    with folder_of(**{"net.toml": text.encode(errors="surrogateescape")}) as folder, rejects_cleanly():
        check(find_network(str(folder / "net.toml")))


def check(network: Network) -> None:
    """What is read can be written, and has shapes or is rejected."""
    assert from_record(json.loads(json.dumps(to_record(network)))) == network
    network.for_data((1, 8, 8), 10, "net.toml")


RECORDS: tuple[dict[str, Any], ...] = (LENET_RECORD, shaped_to_record(shaped(MIXED)))


@FUZZ
@given(st.sampled_from(RECORDS).flatmap(lambda record: json_like({"network": record})))
@example(TOO_DEEP)
@example(json.dumps({"network": {**LENET_RECORD, "classes": 10**400}}).encode())
def test_network_record(content: bytes) -> None:
    """As config.json has it. A checkpoint's is in `test_checkpoint_state`."""
    with folder_of(**{"config.json": content}) as folder, rejects_cleanly():
        network = recorded_network(folder, "mine")
        assert from_record(json.loads(json.dumps(to_record(network)))) == network


@FUZZ
@given(st.sampled_from(RECORDS).flatmap(json_like))
def test_network_on_data(content: bytes) -> None:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return
    with rejects_cleanly():
        try:
            found = shaped_from_record(value, "mine")
        except ValueError as error:  # `checkpoints.network` and the model of scale catch it
            assert str(error)
            return
        assert isinstance(found, ShapedNetwork)
        assert found.size > 0
        assert shaped_from_record(shaped_to_record(found), "mine") == found
