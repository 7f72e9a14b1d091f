"""Jobs that test_parity, test_strategies and test_networks share."""

import pytest
from support.shared_runs import SharedJobs


@pytest.fixture(scope="session")
def shared_jobs(request, tmp_path_factory):
    """Three jobs per framework train most of what these files compare, and only what the selected cases need.

    - horovodrun with two ranks: the broadcast, weights over Gloo, options, low precision, and the strategies over Gloo;
    - one process: the strategies of one process, Adam, and in PyTorch the runs that others are compared with;
    - another process that resumes runs of the former.

    Cases name their runs with the mark `trains`.
    """
    marks = [mark for item in request.session.items for mark in item.iter_markers("trains")]
    return SharedJobs(tmp_path_factory.mktemp("shared"), [run for mark in marks for run in mark.args])
