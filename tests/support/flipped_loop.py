"""`user_loop.py` with a rank that computes wrong bits."""

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.programs import flip_gradients

flip_gradients(1, once=False)
runpy.run_path(str(Path(__file__).with_name("user_loop.py")), run_name="__main__")
