"""How long a job stands still when it loses a rank: the figures and the table of docs/faults.md.

usage: python benchmarks/survive.py [--short] [--parts PART...] [--frameworks F...] [--strategies S...] [--losses N]
                                    [--systems NAME...] [--seed S] [--output FILE]

Jobs of 4 ranks train LeNet on digits; each step sleeps 0.1 s, so that its own time says little. Parts:

- kill: kill -9 of a rank at a random moment, when all train; of each framework and strategy. Measured are the seconds
  to the launcher's report, by which it has told the others, to the end of the next step, and how long the others stand
  still when the replacement joins.
- stop: SIGSTOP of a rank, with --hang-timeout 3; the seconds beyond these 3.
- cable: a host loses its network, of four that this machine makes; needs root.
- systems: the same kills with --survive, --restarts (a checkpoint every 25 steps), torchrun (a checkpoint in each step)
  and Horovod Elastic (a commit in each step); a job for each kill.

Writes tables in Markdown to FILE, with all numbers as JSON next to it. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

from support.stack import INSTALLED  # noqa: E402
from survive_jobs import measure_cable, measure_kills, measure_stops  # noqa: E402
from survive_systems import SYSTEMS, measure_system  # noqa: E402

STRATEGIES = ("horovod", "ring")
PARTS = ("kill", "stop", "cable", "systems")
Results = list[dict[str, Any]]


def main() -> None:
    options = parse_options()
    folder = Path(tempfile.mkdtemp(prefix="hvdtrain-survive-"))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Results] = {}
    parts = {"kill": kill, "stop": stop, "cable": cable, "systems": systems}
    for part in options.parts:
        results[part] = []
        for result in parts[part](options, folder):
            results[part].append(result)
            print(json.dumps(result), flush=True)
            options.output.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    text = "\n\n".join(TABLES[part](found) for part, found in results.items())
    options.output.write_text(text + "\n")
    print(f"\n{text}")
    shutil.rmtree(folder)


def parse_options() -> argparse.Namespace:
    """The options of the command line; --short is for trying the tool."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="2 losses of each kind, instead of 50, 10, 5 and 10")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--frameworks", nargs="+", choices=INSTALLED, default=INSTALLED)
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=STRATEGIES)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--losses", type=int, help="how many of each kind, instead of the numbers of --short")
    parser.add_argument("--seed", type=int, default=0, help="decides ranks and moments; default: 0")
    parser.add_argument("--output", type=Path, default=Path("runs/survive.md"), help="file for the tables")
    return parser.parse_args()


def count(options: argparse.Namespace, usual: int) -> int:
    """How many losses of a kind."""
    return int(options.losses or (2 if options.short else usual))


def kill(options: argparse.Namespace, folder: Path) -> Iterable[dict[str, Any]]:
    """Of each framework and strategy."""
    for framework in options.frameworks:
        for strategy in options.strategies:
            place = folder / f"kill-{framework}-{strategy}"
            figures = measure_kills(place, framework, strategy, count(options, 50), random.Random(options.seed))
            yield {"framework": framework, "strategy": strategy, **figures}


def stop(options: argparse.Namespace, folder: Path) -> Iterable[dict[str, Any]]:
    """Of the first framework, with each strategy."""
    framework = options.frameworks[0]
    for strategy in options.strategies:
        figures = measure_stops(
            folder / f"stop-{strategy}", framework, strategy, count(options, 10), random.Random(options.seed)
        )
        yield {"framework": framework, "strategy": strategy, **figures}


def cable(options: argparse.Namespace, folder: Path) -> Iterable[dict[str, Any]]:
    """Of the first framework, with each strategy."""
    framework = options.frameworks[0]
    for strategy in options.strategies:
        figures = measure_cable(folder / f"cable-{strategy}", framework, strategy, count(options, 5))
        yield {"framework": framework, "strategy": strategy, **figures}


def systems(options: argparse.Namespace, folder: Path) -> Iterable[dict[str, Any]]:
    """The same kills of each system."""
    for name in options.systems:
        yield {
            "system": name,
            **measure_system(name, folder / name.replace(" ", "-"), count(options, 10), random.Random(options.seed)),
        }


def both(values: list[float]) -> str:
    """Median and maximum."""
    return f"{statistics.median(values):.2f}, {max(values):.2f}" if values else "none"


def table(head: list[str], rows: Iterable[Iterable[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def table_of_losses(results: Results) -> str:
    """Of kills, stops or cables; all figures are median and maximum."""
    names = [name for name in results[0] if name.endswith("_s")]
    head = ["framework", "strategy", "losses", *(name.removesuffix("_s").replace("_", " ") + ", s" for name in names)]
    losses = lambda one: len(one["to_next_step_s"])  # noqa: E731
    rows = ([one["framework"], one["strategy"], losses(one), *(both(one[name]) for name in names)] for one in results)
    return table(head, rows)


def table_of_systems(results: Results) -> str:
    """Of the systems compared."""
    head = ["system", "kills", "to the next step, s (median, maximum)", "steps done again (median)", "result"]
    rows = (
        [one["system"], len(one["to_next_step_s"]), both(one["to_next_step_s"]),
         f"{statistics.median(one['done_again']):g}" if one["done_again"] else "", one["result"]]
        for one in results
    )  # fmt: skip
    return table(head, rows)


TABLES: dict[str, Callable[[Results], str]] = {
    **dict.fromkeys(("kill", "stop", "cable"), table_of_losses),
    "systems": table_of_systems,
}

if __name__ == "__main__":
    main()
