"""Fuzz the parsers: python -m fuzz [NAME ...] with tests/ on PYTHONPATH, as `make fuzz` does.

Each property whose name contains one of NAME (default: all) gets new examples for FUZZ_MINUTES. A table of the results
follows.
"""

from __future__ import annotations

import importlib
import logging
import os
import resource
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("FUZZ_MINUTES", "10")  # before fuzz.properties, which decides by it how many examples to draw

from fuzz.properties import Count

PASSED = "no failure"
ADDRESS_SPACE_BYTES = 6 << 30
"""A parser that takes more gets a MemoryError; the machine is not affected."""


def properties() -> dict[str, Callable[[], None]]:
    """The fuzz tests of this folder, without `test_`, by name."""
    modules = [importlib.import_module(f"fuzz.{path.stem}") for path in sorted(Path(__file__).parent.glob("test_*.py"))]
    return {name[5:]: test for module in modules for name, test in vars(module).items() if name.startswith("test_")}


def fuzz(name: str, test: Callable[[], None], seconds: float) -> tuple[str, int, float, str]:
    """Run a property with new examples until the time is over or one fails; its row in the table."""
    Count.examples, begin, reported, result = 0, time.monotonic(), 0.0, PASSED
    while (spent := time.monotonic() - begin) < seconds and result == PASSED:
        if spent - reported > 15:
            reported = spent
            print(f"{name}: {Count.examples} examples in {spent:.0f} of {seconds:.0f} s", flush=True)
        try:
            test()
        except Exception as error:
            traceback.print_exc()
            result = f"FAILED: {type(error).__name__}"
    return name, Count.examples, time.monotonic() - begin, result


def main(names: list[str]) -> int:
    """Fuzz the parsers whose names contain one of `names`, by default all; 1 if one fails, 2 if there is none."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    logging.disable()
    warnings.simplefilter("ignore")
    seconds = 60 * float(os.environ["FUZZ_MINUTES"])
    tests = properties()
    chosen = [name for name in tests if not names or any(part in name for part in names)]
    if not chosen:
        print(f"no parser's name contains {' or '.join(names)}; choose among: {', '.join(tests)}", file=sys.stderr)
        return 2
    rows = [fuzz(name, tests[name], seconds) for name in chosen]
    print(f"\n{'parser':<24}{'examples':>9}{'seconds':>9}  result")
    for name, examples, spent, result in rows:
        print(f"{name:<24}{examples:>9}{spent:>9.0f}  {result}")
    return int(any(result != PASSED for *_, result in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
