"""The output of `--strategy help`: a framework's strategies, and why some do not run on this machine."""

from __future__ import annotations

import json
import os

from hvdtrain.config.options import Framework
from hvdtrain.frameworks import registry

JSON = "HVDTRAIN_JSON"
"""Environment variable by which a program asks for JSON."""


def show(framework: Framework) -> None:
    """Print the list. Raises UserError if the framework is missing."""
    registry.set_environment()
    listed = registry.offers(framework)
    if os.environ.get(JSON):
        print(json.dumps([offer._asdict() for offer in listed]))
        return
    print(f"Strategies of {framework}, for --strategy; give --api to choose one of several styles\n")
    for offer in listed:
        print(f"  {offer.strategy:13} {offer.api:8} {offer.about}")
        if offer.problem:
            print(f"  {'':22} not here: {offer.problem}")
