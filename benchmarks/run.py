"""The first part of make bench: hvdtrain against hand-written loops, as ratios measured in one run on one machine.

usage: python benchmarks/run.py [--steps N] [--repeats N] [--output FILE]

Book's LeNet, Fashion-MNIST (synthetic images where HVDTRAIN_DATA has none), global batch 256, two processes of one
thread each, over Gloo. Every job is a process of its own through its launcher; the jobs of a repeat follow each
other, so that drift of the machine's speed hits all alike, and a ratio compares two jobs of the same repeat.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from hvdtrain.runs import record

HERE = Path(__file__).resolve().parent
GLOO = ["horovodrun", "--gloo", "-np", "2", "python"]
TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node", "2"]

# row: the words that start it, before its data and number of steps
BARE = {
    "torch DDP by hand": [*TORCHRUN, str(HERE / "bare_torch_ddp.py")],
    "torch Horovod with DataLoader": [*GLOO, str(HERE / "dataloader_torch_horovod.py")],
    "mxnet Horovod by hand": [*GLOO, str(HERE / "bare_mxnet_horovod.py")],
    "tensorflow Horovod by hand": [*GLOO, str(HERE / "bare_tensorflow_horovod.py")],
}
OURS = {
    "hvdtrain torch": ("torch", []),
    "hvdtrain torch bf16": ("torch", ["--precision", "bf16"]),
    "hvdtrain mxnet": ("mxnet", []),
    "hvdtrain tensorflow": ("tensorflow", []),
}
# ours, theirs, least ratio of images/s
RATIOS = [
    ("hvdtrain torch", "torch DDP by hand", 0.97),
    ("hvdtrain torch", "torch Horovod with DataLoader", 1.25),
    ("hvdtrain torch bf16", "torch DDP by hand", 1.8),
    ("hvdtrain mxnet", "mxnet Horovod by hand", 0.97),
    ("hvdtrain tensorflow", "tensorflow Horovod by hand", 0.97),
]
MEMORY_MB, OUTSIDE_SHARE = 150, 0.03


def main() -> None:
    """Run the table, append to the output, and print Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="steps of a job, at least 60 (default: 200)")
    parser.add_argument("--repeats", type=int, default=5, help="times that each job runs (default: 5)")
    parser.add_argument("--output", type=Path, default=Path("runs/bench.jsonl"), help="file that results are added to")
    options = parser.parse_args()
    data = "fashion-mnist" if Path(os.environ.get("HVDTRAIN_DATA", ""), "fashion-mnist").is_dir() else "synthetic"
    options.output.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, list[dict[str, float]]] = {name: [] for name in [*BARE, *OURS]}
    for repeat in range(options.repeats):
        for name, done in results.items():
            print(f"repeat {repeat + 1}/{options.repeats}: {name}", file=sys.stderr, flush=True)
            done.append(measure(name, data, options.steps))
            with open(options.output, "a") as file:
                file.write(json.dumps({"row": name, "repeat": repeat, "data": data, **done[-1]}) + "\n")
    print(table(results, data))


def measure(name: str, data: str, steps: int) -> dict[str, float]:
    """Run one job; its images/s and the largest memory of a rank."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "HOROVOD_LOG_LEVEL": "error"}
    with tempfile.TemporaryDirectory() as folder:
        if name in BARE:
            output = start([*BARE[name], data, str(steps)], environment)
            line = next(line for line in output.splitlines() if "images_per_s" in line)
            return json.loads(line[line.index("{") : line.rindex("}") + 1])
        framework, options = OURS[name]
        words = [*GLOO, "-m", f"hvdtrain.{framework}_lenet", "--recipe", "book", "--data", data, "--runs", folder]
        start([*words, "--name", "job", "--max-steps", str(steps), "--quiet", *options], environment)
        result = json.loads(Path(folder, "job", "result.json").read_text())
        return {key: result[key] for key in ("images_per_s", "peak_rss_mb", "outside_share")}


def start(words: list[str], environment: dict[str, str]) -> str:
    """The output of a job that ends well; ends this program with the output of one that does not."""
    job = subprocess.run(words, env=environment, text=True, capture_output=True, timeout=600)
    if job.returncode:
        sys.exit(f"{' '.join(words)} ended with status {job.returncode}:\n{job.stdout[-2000:]}{job.stderr[-2000:]}")
    return job.stdout


def spread(values: list[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def table(results: dict[str, list[dict[str, float]]], data: str) -> str:
    """All figures as Markdown: the median, and in brackets the least and the greatest."""
    host, versions = record.host(), record.versions()
    lines = [
        f"{host['processor']}, {host['cores']} cores; {data}; "
        + ", ".join(f"{name} {version}" for name, version in versions.items()),
        "",
        "| job | images/s | peak memory of a rank, MB | loop outside the framework |",
        "| --- | --- | --- | --- |",
    ]
    for name, runs in results.items():
        columns = [
            spread([run["images_per_s"] for run in runs], ",.0f"),
            spread([r["peak_rss_mb"] for r in runs], ".0f"),
        ]
        shares = [run["outside_share"] for run in runs if "outside_share" in run]
        columns.append(verdict(spread(shares, ".2%"), statistics.median(shares) < OUTSIDE_SHARE) if shares else "")
        lines.append(f"| {name} | " + " | ".join(columns) + " |")
    lines += ["", "| ratio | measured | at least |", "| --- | --- | --- |"]
    for ours, theirs, least in RATIOS:
        ratios = [a["images_per_s"] / b["images_per_s"] for a, b in zip(results[ours], results[theirs], strict=True)]
        lines.append(
            f"| {ours} / {theirs} | {verdict(spread(ratios, '.2f'), statistics.median(ratios) >= least)} | {least} |"
        )
        if least == 0.97:
            more = statistics.median(
                a["peak_rss_mb"] - b["peak_rss_mb"] for a, b in zip(results[ours], results[theirs], strict=True)
            )
            told = verdict(f"{more:.0f} MB", more <= MEMORY_MB)
            lines.append(f"| memory, {ours} - {theirs} | {told} | at most {MEMORY_MB} MB |")
    return "\n".join(lines)


def verdict(text: str, reached: bool) -> str:
    return f"{text}, {'reached' if reached else 'MISSED'}"


if __name__ == "__main__":
    main()
