"""Runs scripts one after the other in one process, so that each rank imports its framework once.

usage: python several_scripts.py [NAME=VALUE ...] SCRIPT [OPTIONS] [--then ...]

NAME=VALUE: environment variables of the script that follows, and of no other.
"""

import itertools
import os
import runpy
import sys

from programs import parts

from hvdtrain.runs import plots

plots.plot_metrics = lambda folder, *_: folder  # Matplotlib takes half a second for each run

for given in parts(sys.argv[1:]):
    variables = dict(word.split("=", 1) for word in itertools.takewhile(lambda word: "=" in word, given))
    os.environ.update(variables)
    sys.argv = given[len(variables) :]
    runpy.run_path(sys.argv[0], run_name="__main__")
    for name in variables:
        del os.environ[name]
