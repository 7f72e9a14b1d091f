"""Functions of the checks that need no process."""

from __future__ import annotations

from hvdtrain.doctor.checks.gpu import runs_on
from hvdtrain.doctor.checks.job import ClockSamples, clock_offset, differences
from hvdtrain.doctor.checks.mpi import identify
from hvdtrain.doctor.checks.software import read_pins
from hvdtrain.doctor.findings import wrong_size
from hvdtrain.system.rank_info import local_size


def test_remedy_depends_on_the_launcher():
    for by, gloo, remedy in (
        ("mpirun", False, "the mpirun of the MPI"),
        ("launch local", True, "Horovod with Gloo"),
        ("srun", False, "srun --mpi=pmix"),
        ("launch srun", True, "Horovod with Gloo"),
    ):
        assert remedy in wrong_size(by, 2, 1, gloo).remedy


def test_clock_offset():
    """Rank 1 is 5 s ahead; each gather takes 0.2 s, and no rank leaves it before all have entered."""
    zero = ClockSamples([10.0, 20.0], [10.2, 20.1])
    one = ClockSamples([15.1, 25.0], [15.2, 25.1])
    offset, uncertainty = clock_offset(one, zero)
    assert abs(offset - 5) <= uncertainty <= 0.2
    assert clock_offset(zero, zero)[0] == 0


def test_local_size_from_the_launcher_s_variables():
    assert local_size({"OMPI_COMM_WORLD_LOCAL_SIZE": "3"}) == 3
    slurm = {"SLURM_STEP_TASKS_PER_NODE": "4(x2),1", "SLURM_NODEID": "2"}
    assert local_size(slurm) == 1
    assert local_size({**slurm, "SLURM_NODEID": "0"}) == 4
    ours = {"HVDTRAIN_RANK": "0", "HVDTRAIN_SIZE": "9"}
    assert local_size({**slurm, **ours, "SLURM_NODEID": "7"}) == 9
    assert local_size({}) == 1


def test_differences_between_ranks():
    assert differences([{"a": "1"}, {"a": "1"}]) == {}
    assert differences([{"a": "1"}, {}, {"a": "1"}]) == {"a": "1 (rank 0, 2), none (rank 1)"}


def test_pinned_versions():
    assert read_pins("# x\na-b==1.2.3\nc==4 # why\n") == {"a-b": "1.2.3", "c": "4"}
    by_python = 'd==1 ; python_version < "3.2"\nd==2 ; python_version >= "3.2"  # why\ne==5;python_version<"3"\n'
    assert read_pins(by_python) == {"d": "2"}


def test_code_of_a_framework_on_gpus():
    for code, capability, runs in (
        (["sm_75", "sm_80"], 86, True),
        (["sm_75", "sm_80"], 90, False),
        (["sm_90"], 80, False),
        (["sm_90a"], 90, True),
        (["sm_90a", "sm_100a"], 103, False),
        (["sm_100"], 120, False),
        (["sm_80", "compute_90"], 120, True),
        (["sm_80", "compute_90"], 75, False),
    ):
        assert runs_on(code, capability) == runs, (code, capability)


def test_identify_mpi():
    for text, name in (
        ("mpirun (Open MPI) 4.1.8", ("Open MPI", "4.1.8")),
        ("Open MPI v4.1.4, package: Debian", ("Open MPI", "4.1.4")),
        ("HYDRA build details:\n    Version:      4.0.2\n", ("MPICH", "4.0.2")),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.11 Build", ("Intel MPI", "2021.11")),
        ("what", ("an unknown MPI", "")),
    ):
        assert identify(text) == name
