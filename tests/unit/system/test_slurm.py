"""Slurm's compact node lists."""

import pytest

from hvdtrain.errors import UserError
from hvdtrain.system import slurm


@pytest.mark.parametrize(
    ("nodes", "hosts"),
    [
        ("node1", ["node1"]),
        ("node[01-03,07],other", ["node01", "node02", "node03", "node07", "other"]),
        ("a-b[7],c", ["a-b7", "c"]),
        ("r[1-2]n[8-10]x", ["r1n8x", "r1n9x", "r1n10x", "r2n8x", "r2n9x", "r2n10x"]),
    ],
)
def test_hosts_of_a_node_list(nodes, hosts):
    assert slurm.hostnames(nodes) == hosts


@pytest.mark.parametrize("nodes", ["", ",", "a,", "a[", "a[]", "a[1-]", "a[3-1]", "a[x]", "a[1-999999999]", "a]b"])
def test_invalid_node_list(nodes):
    with pytest.raises(UserError, match="as Slurm writes it"):
        slurm.hostnames(nodes)


@pytest.mark.parametrize("nodes", ["-oProxyCommand=x", "a,-b", "a b", "n[1-2]/x"])
def test_names_that_are_not_host_names(nodes):
    """They would reach ssh, which would read them as options."""
    with pytest.raises(UserError, match="not the name of a host"):
        slurm.hostnames(nodes)
