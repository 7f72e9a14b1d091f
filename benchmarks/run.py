"""The first part of make bench: hvdtrain compared with hand-written loops on this machine.

usage: python benchmarks/run.py [--steps N] [--repeats N] [--frameworks F...] [--output FILE]

LeNet of the recipe `book`, Fashion-MNIST (synthetic images if HVDTRAIN_DATA does not have it), global batch 256, two
processes with one thread each. Every job runs in processes of its own, through its launcher. The jobs of a repeat
follow each other, so that drift of the machine's speed affects all equally, and a ratio compares two jobs of the same
repeat. The hand-written loops run over Gloo, with Horovod's background thread as published (HOROVOD_EVENT_DRIVEN=0).
Jobs of frameworks that are not installed are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from allreduce import AS_SHIPPED

from hvdtrain.jobs.launchers import mpirun_here
from hvdtrain.measure.bench.strategies import default_dataset, launched_here
from hvdtrain.runs import record
from hvdtrain.system import arithmetic, stacks
from hvdtrain.views.table import spread

INSTALLED = [name for name in ("torch", "mxnet", "tensorflow") if importlib.util.find_spec(name)]
HERE = Path(__file__).resolve().parent
Runs = list[dict[str, float]]
"""Figures of a job's repeats."""
GLOO = ["horovodrun", "--gloo", "-np", "2", "python"]
TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node", "2"]

# The command line of each job, without its data set and number of steps.
BARE = {
    "torch DDP by hand": [*TORCHRUN, str(HERE / "bare_torch_ddp.py")],
    "torch Horovod with DataLoader": [*GLOO, str(HERE / "dataloader_torch_horovod.py")],
    "mxnet Horovod by hand": [*GLOO, str(HERE / "bare_mxnet_horovod.py")],
    "tensorflow Horovod by hand": [*GLOO, str(HERE / "bare_tensorflow_horovod.py")],
}
BF16 = ["--precision", "bf16"]
# hvdtrain's jobs, each with its options as a user would give them: launcher, framework, options of training.
OURS = {
    "hvdtrain torch": (launched_here, "torch", []),
    "hvdtrain torch, over MPI": (mpirun_here, "torch", []),
    "hvdtrain torch --compile": (launched_here, "torch", ["--compile"]),
    "hvdtrain torch bf16": (launched_here, "torch", BF16),
    "hvdtrain torch bf16, over MPI": (mpirun_here, "torch", BF16),
    "hvdtrain torch bf16 --compile": (launched_here, "torch", [*BF16, "--compile"]),
    "hvdtrain mxnet": (launched_here, "mxnet", []),
    "hvdtrain mxnet, over MPI": (mpirun_here, "mxnet", []),
    "hvdtrain tensorflow": (launched_here, "tensorflow", []),
    "hvdtrain tensorflow, over MPI": (mpirun_here, "tensorflow", []),
}
TORCH = ("hvdtrain torch", "hvdtrain torch, over MPI", "hvdtrain torch --compile")
TORCH_BF16 = ("hvdtrain torch bf16", "hvdtrain torch bf16, over MPI", "hvdtrain torch bf16 --compile")
BF16_PROCESSORS = "AMD processors with AVX512_BF16"
"""For which the goal of bf16 holds: other processors may multiply more slowly in bf16 than in fp32."""
# hvdtrain's jobs (the fastest counts), the job to compare with, and the minimum ratio of images/s.
RATIOS = [
    (TORCH, "torch DDP by hand", 1.8),
    (TORCH, "torch Horovod with DataLoader", 1.25),
    (TORCH_BF16, "torch DDP by hand", 3.0),
    (("hvdtrain mxnet", "hvdtrain mxnet, over MPI"), "mxnet Horovod by hand", 1.4),
    (("hvdtrain tensorflow", "hvdtrain tensorflow, over MPI"), "tensorflow Horovod by hand", 1.35),
]
# Loops that do the same, whose memory is compared.
EQUIVALENT = [
    ("hvdtrain torch", "torch DDP by hand"),
    ("hvdtrain mxnet", "mxnet Horovod by hand"),
    ("hvdtrain tensorflow", "tensorflow Horovod by hand"),
]
MEMORY_MB, OUTSIDE_SHARE = 150, 0.03
"""Limits: additional memory of a rank, and share of a step's time outside the framework."""


def main() -> None:
    """Run all jobs, append their results to the output file, and print the tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="steps of a job, at least 60; default: 200")
    parser.add_argument("--repeats", type=int, default=5, help="how often each job runs; default: 5")
    parser.add_argument("--frameworks", nargs="+", default=INSTALLED, help="default: all that are installed")
    parser.add_argument("--output", type=Path, default=Path("runs/bench.jsonl"), help="file to append results to")
    options = parser.parse_args()
    data = default_dataset()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Runs] = {name: [] for name in [*BARE, *OURS] if framework_of(name) in options.frameworks}
    for repeat in range(options.repeats):
        for name, done in results.items():
            print(f"repeat {repeat + 1}/{options.repeats}: {name}", file=sys.stderr, flush=True)
            done.append(measure(name, data, options.steps))
            with open(options.output, "a") as file:
                file.write(json.dumps({"row": name, "repeat": repeat, "data": data, **done[-1]}) + "\n")
    print(table(results, data))


def framework_of(name: str) -> str:
    """The framework of a job."""
    return re.findall("torch|mxnet|tensorflow", name)[0]


def measure(name: str, data: str, steps: int) -> dict[str, float]:
    """Run one job; its images/s, and the peak memory of a rank in MB."""
    if name in BARE:
        return reported(start([*BARE[name], data, str(steps)], AS_SHIPPED))
    launcher, framework, options = OURS[name]
    return train([*launcher(2), sys.executable, "-m", f"hvdtrain.{framework}_lenet", *options], data, steps)


def train(command: list[str], data: str, steps: int) -> dict[str, float]:
    """The figures of a training of hvdtrain by this command."""
    with tempfile.TemporaryDirectory() as folder:
        place = ["--data", data, "--runs", folder, "--name", "job", "--max-steps", str(steps), "--quiet"]
        start([*command, "--recipe", "book", *place])
        result = json.loads(Path(folder, "job", "result.json").read_text())
        return {key: result[key] for key in ("images_per_s", "peak_rss_mb", "outside_share")}


def start(command: list[str], variables: Mapping[str, str] = {}) -> str:
    """The output of a job with one thread a rank; ends this program with the job's output if it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "HOROVOD_LOG_LEVEL": "error"}
    job = subprocess.run(command, env={**environment, **variables}, text=True, capture_output=True, timeout=600)
    if job.returncode:
        sys.exit(f"{' '.join(command)} ended with status {job.returncode}:\n{job.stdout[-2000:]}{job.stderr[-2000:]}")
    return job.stdout


def reported(output: str) -> dict[str, float]:
    """The figures in the output of a hand-written loop (`bare.Clock.report`)."""
    line = next(line for line in output.splitlines() if "images_per_s" in line)
    return json.loads(line[line.index("{") : line.rindex("}") + 1])


def table(results: dict[str, Runs], data: str) -> str:
    """All figures in Markdown."""
    host = record.host()
    packages = ", ".join(f"{name} {version}" for name, version in stacks.installed_versions().items())
    lines = [
        f"{host['processor']}, {host['cores']} cores; {data}; {packages}",
        "",
        "| job | images/s | peak memory of a rank, MB | loop outside the framework |",
        "| --- | --- | --- | --- |",
        *(job_line(name, runs) for name, runs in results.items()),
        "",
        "| ratio | measured | at least |",
        "| --- | --- | --- |",
    ]
    for ours, theirs, minimum in RATIOS:
        lines += ratio_lines(ours, theirs, minimum, results) if theirs in results else []
    lines += ["", "| memory of a rank | measured | at most |", "| --- | --- | --- |"]
    lines += (memory_line(ours, theirs, results) for ours, theirs in EQUIVALENT if theirs in results)
    return "\n".join(lines)


def job_line(name: str, runs: Runs) -> str:
    """Speed, memory, and for hvdtrain the share of time outside the framework."""
    shares = [run["outside_share"] for run in runs if "outside_share" in run]
    columns = [
        spread([run["images_per_s"] for run in runs], ",.0f"),
        spread([run["peak_rss_mb"] for run in runs], ".0f"),
        verdict(spread(shares, ".2%"), statistics.median(shares) < OUTSIDE_SHARE) if shares else "",
    ]
    return f"| {name} | " + " | ".join(columns) + " |"


def ratio_lines(ours: tuple[str, ...], theirs: str, minimum: float, results: dict[str, Runs]) -> list[str]:
    """The ratios of speeds of some of our jobs and another one; the fastest job is to reach the minimum."""
    fastest = max(ours, key=lambda name: statistics.median(run["images_per_s"] for run in results[name]))
    lines = []
    for name in ours:
        pairs = zip(results[name], results[theirs], strict=True)
        ratios = [one["images_per_s"] / other["images_per_s"] for one, other in pairs]
        measured, goal = spread(ratios, ".2f"), ""
        if name == fastest and ours == TORCH_BF16 and not has_fast_bf16(arithmetic.processor()):
            goal = f"{minimum} on {BF16_PROCESSORS}, not here"
        elif name == fastest:
            measured = verdict(measured, statistics.median(ratios) >= minimum)
            goal = f"{minimum} on {BF16_PROCESSORS}" if ours == TORCH_BF16 else f"{minimum}"
        lines.append(f"| {name} / {theirs} | {measured} | {goal} |")
    return lines


def has_fast_bf16(processor: arithmetic.Processor) -> bool:
    """Whether it is one of BF16_PROCESSORS."""
    return processor.vendor == "AuthenticAMD" and "avx512_bf16" in processor.flags


def memory_line(ours: str, theirs: str, results: dict[str, Runs]) -> str:
    """The median difference of the peak memory of two jobs."""
    pairs = zip(results[ours], results[theirs], strict=True)
    more = statistics.median(one["peak_rss_mb"] - other["peak_rss_mb"] for one, other in pairs)
    return f"| {ours} - {theirs} | {verdict(f'{more:.0f} MB', more <= MEMORY_MB)} | {MEMORY_MB} MB |"


def verdict(text: str, reached: bool) -> str:
    return f"{text}, {'reached' if reached else 'MISSED'}"


if __name__ == "__main__":
    main()
