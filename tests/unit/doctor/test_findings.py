"""Findings that several checks share."""

from __future__ import annotations

from hvdtrain.doctor.findings import wrong_size


def test_remedy_depends_on_the_launcher():
    for by, gloo, remedy in (
        ("mpirun", False, "the mpirun of the MPI"),
        ("launch local", True, "Horovod with Gloo"),
        ("srun", False, "srun --mpi=pmix"),
        ("launch srun", True, "Horovod with Gloo"),
    ):
        assert remedy in wrong_size(by, 2, 1, gloo).remedy
