"""`user_loop.py` with a rank that computes wrong bits. FLIP_ONCE: in one step only."""

import os
import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.programs import flip_gradients

flip_gradients(1, once="FLIP_ONCE" in os.environ)
runpy.run_path(str(Path(__file__).with_name("user_loop.py")), run_name="__main__")
