"""Findings and remedies that several checks share."""

from __future__ import annotations

from hvdtrain.doctor.findings import Finding, fail
from hvdtrain.system import stacks


def wrong_size(launcher: str, expected: int, size: int, gloo: bool) -> Finding:
    """Horovod does not see all processes of the launcher. gloo: they should connect over Gloo, else over MPI."""
    each = "every process is rank 0 and would train alone" if size == 1 else f"Horovod sees {size}"
    builds = "Gloo" if gloo else "MPI; use the mpirun of the MPI that it was built with"
    remedy = (
        "unset HOROVOD_CONTROLLER and HOROVOD_CPU_OPERATIONS; see horovodrun --check-build: "
        f"{stacks.repair_command()} builds Horovod with {builds}"
    )
    if launcher.endswith("srun") and not gloo:
        remedy = "python -m hvdtrain launch srun, which uses Gloo; or srun --mpi=pmix, if the site's MPI supports it"
    return fail(f"{launcher} started {expected} processes, but {each}", remedy)
