"""Values of all ranks, compared."""

from __future__ import annotations

from hvdtrain.doctor.checks.job import ClockSamples, clock_offset, differences
from hvdtrain.doctor.findings import wrong_size


def test_clock_offset():
    """Rank 1 is 5 s ahead; each gather takes 0.2 s, and no rank leaves it before all have entered."""
    zero = ClockSamples([10.0, 20.0], [10.2, 20.1])
    ahead = ClockSamples([15.1, 25.0], [15.2, 25.1])
    offset, uncertainty = clock_offset(ahead, zero)
    assert abs(offset - 5) <= uncertainty <= 0.2
    assert clock_offset(zero, zero)[0] == 0


def test_differences_between_ranks():
    assert differences([{"a": "1"}, {"a": "1"}]) == {}
    assert differences([{"a": "1"}, {}, {"a": "1"}]) == {"a": "1 (rank 0, 2), none (rank 1)"}


def test_remedy_depends_on_the_launcher():
    for by, gloo, remedy in (
        ("mpirun", False, "the mpirun of the MPI"),
        ("launch local", True, "Horovod with Gloo"),
        ("srun", False, "srun --mpi=pmix"),
        ("launch srun", True, "Horovod with Gloo"),
    ):
        assert remedy in wrong_size(by, 2, 1, gloo).remedy
