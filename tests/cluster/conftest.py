"""The hosts and a Slurm on them, which are made once for all tests of this folder."""

from __future__ import annotations

import pytest
from support.cluster import HOST_NEEDS, SLURM_NEEDS, Hosts, Slurm, need
from support.cluster_jobs import QUICK
from support.jobs import newest, train


@pytest.fixture(scope="package")
def hosts(tmp_path_factory):
    need(HOST_NEEDS, "iproute2 util-linux openssh-server openssh-client")
    made = Hosts(tmp_path_factory.mktemp("hosts"), 3)
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture(scope="package")
def slurm(hosts, tmp_path_factory):
    need(SLURM_NEEDS, "slurm-wlm slurm-wlm-basic-plugins munge")
    made = Slurm(hosts, tmp_path_factory.mktemp("slurm"))
    made.up()
    yield made
    made.down()


@pytest.fixture(scope="package")
def one_process(tmp_path_factory):
    """Final weights of one process, by framework."""
    folder, known = tmp_path_factory.mktemp("one"), {}

    def weights(framework):
        if framework not in known:
            made = train(folder, framework, "--strategy", "single", "--name", framework, *QUICK)
            known[framework] = newest(made).weights
        return known[framework]

    return weights
