"""Jobs that test_parity, test_strategies, test_networks and test_tasks share."""

import pytest
from support.shared_runs import SharedJobs


@pytest.fixture(scope="session")
def shared_jobs(request, tmp_path_factory):
    """Two jobs per framework train most of what these files compare, and only what the selected cases need.

    - two or three ranks: broadcast, weights, options, low precision, and strategies without a launcher of their own;
    - one process: the strategies of one process, Adam, and in PyTorch the runs that others are compared with.

    Both also resume runs. Cases name their runs with the mark `trains`.
    """
    marks = [mark for item in request.session.items for mark in item.iter_markers("trains")]
    return SharedJobs(tmp_path_factory.mktemp("shared"), [run for mark in marks for run in mark.args])
