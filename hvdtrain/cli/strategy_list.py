"""The output of `--strategy help`: a framework's strategies, and why some do not run on this machine."""

from __future__ import annotations

import json
import os

from hvdtrain.config.options import Framework
from hvdtrain.frameworks import registry, tuning

JSON = "HVDTRAIN_JSON"
"""Environment variable by which a program asks for JSON."""


def show(framework: Framework) -> None:
    """Print the list. Raises UserError if the framework is missing."""
    tuning.set_environment()
    listed = registry.list_strategies(framework)
    if os.environ.get(JSON):
        print(json.dumps([row._asdict() for row in listed]))
        return
    print(f"Strategies of {framework}, for --strategy; give --api to choose one of several styles\n")
    for row in listed:
        print(f"  {row.strategy:13} {row.api:8} {row.about}")
        if row.problem:
            print(f"  {'':22} not here: {row.problem}")
