"""MXNet. Import this package first: MXNet aborts at its import unless OMP_NUM_THREADS is one number."""

import os

from hvdtrain.errors import UserError
from hvdtrain.system.arithmetic import openmp_threads

if given := os.environ.get("OMP_NUM_THREADS"):
    if not openmp_threads():
        raise UserError(f"OMP_NUM_THREADS={given!r:.80} is not a positive integer", "set it to a number, or unset it")
    os.environ["OMP_NUM_THREADS"] = str(openmp_threads())
