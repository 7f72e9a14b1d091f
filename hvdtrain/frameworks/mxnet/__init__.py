"""MXNet. Import this package before it: it aborts unless OMP_NUM_THREADS, which may be a list, is one number.

Raises UserError for what is neither.
"""

import os

from hvdtrain.errors import UserError
from hvdtrain.system.arithmetic import openmp_threads

if given := os.environ.get("OMP_NUM_THREADS"):
    if not openmp_threads():
        raise UserError(f"OMP_NUM_THREADS={given!r:.80} is not a positive integer", "set it to a number, or unset it")
    os.environ["OMP_NUM_THREADS"] = str(openmp_threads())
