"""What a rank costs that has started Horovod and does nothing else: CPU seconds per second, of all its threads.

usage: python benchmarks/idle.py [--repeats N] [FOLDER]   (FOLDER/idle.json gets what `goals.py` reads)
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from allreduce import LIBRARIES

from hvdtrain.measure.bench.strategies import environment

RANKS = 2
PROGRAM = """
import json, time
from hvdtrain.frameworks import preparation
preparation.set_environment()
import horovod.torch as hvd
hvd.init()
time.sleep(1)  # the start of the library ends
began, cpu_s = time.perf_counter(), time.process_time()
time.sleep(5)
shares = hvd.allgather_object((time.process_time() - cpu_s) / (time.perf_counter() - began))
if hvd.rank() == 0:
    print(json.dumps({"idle": shares}), flush=True)
hvd.shutdown()
"""


def main() -> None:
    """Measure Horovod over Gloo and MPI, also as shipped, and print the share of a core of each rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/bench"), help="default: runs/bench")
    parser.add_argument("--repeats", type=int, default=5, help="jobs of each library; default: 5")
    options = parser.parse_args()
    folder, names = options.folder, [name for name in LIBRARIES if "horovod" in name]
    rows = [{"library": name, "runs": [idle(name) for _ in range(options.repeats)]} for name in names]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "idle.json").write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        print(f"{row['library']}: {', '.join(f'{min(run):.1%} to {max(run):.1%}' for run in row['runs'])}")


def idle(name: str) -> list[float]:
    """The share of a core that each rank takes, in one job."""
    library = LIBRARIES[name]
    command = [*library.launcher(RANKS), sys.executable, "-c", PROGRAM]
    variables = {**environment(), **library.environment}
    out = subprocess.run(command, env=variables, check=True, timeout=120, capture_output=True, text=True).stdout
    return json.loads(out[out.index('{"idle"') : out.rindex("}") + 1])["idle"]


if __name__ == "__main__":
    main()
