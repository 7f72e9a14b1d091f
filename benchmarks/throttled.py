"""The model of scale against jobs on slow links, measured on this machine. Run by hand; needs root, ip and tc.

usage: python benchmarks/throttled.py [--rates MBIT...] [--ranks N...] [--strategies ring horovod] [--output FILE]

Each rank is a host of its own: a network namespace, connected to a switch by a link that `tc` limits to so few Mbit/s
that communication takes most of a step, and this machine's cores little of it. The model does not see these jobs. It
gets the record of one rank, without a network; latency by `bench allreduce` of two ranks without a limit; and the
rate that `tc` was given. Ranks share this machine's cores, as those of a cluster would not, so computation counts
ranks / cores times where there are more ranks than cores. All namespaces are removed at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hvdtrain.measure.bench.allreduce import AllreduceBenchOptions, measure
from hvdtrain.measure.scale.algorithms import Link
from hvdtrain.measure.scale.communication import Communication, Fit, Measured, fit
from hvdtrain.measure.scale.inputs import DEFAULT_OVERLAP, library
from hvdtrain.measure.scale.step import StepModel, StepTime
from hvdtrain.measure.scale.workload import Workload, read_workload

PAYLOAD = 1448 / (1514 + 66 / 2)
"""Of the bytes that `tc` counts, the share that is data: a frame of 1514 bytes carries 1448, and every second frame is
acknowledged by one of 66."""
LIBRARIES = {"ring": "ring", "horovod": "horovod-gloo"}
"""The model's name of a strategy's allreduce."""
STEPS, LOG_EVERY = 40, 5
ETC = Path("/etc/netns")
SUBNET = "10.78.41"
SECONDS, STORE_PORT = 900, 29700
STORE = """
import time
from hvdtrain.jobs.gloo import Store
Store("", {port})
print("ready", flush=True)
time.sleep(1e6)
"""


def main() -> None:
    """Measure all jobs, append them to the output file, and print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[10, 20, 50], help="Mbit/s; default: 10 20 50")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8], help="default: 2 4 8")
    parser.add_argument("--strategies", nargs="+", choices=[*LIBRARIES], default=[*LIBRARIES])
    parser.add_argument("--batch-size", type=int, default=8, help="images of a rank; default: 8")
    parser.add_argument("--output", type=Path, default=Path("runs/throttled.jsonl"), help="file to append results to")
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # also removes the namespaces
    rows = []
    with tempfile.TemporaryDirectory() as folder, hosts(max(options.ranks)) as spaces:
        workload = one_rank(Path(folder), options.batch_size)
        for strategy in options.strategies:
            latency = unlimited(LIBRARIES[strategy])
            for rate in options.rates:
                limit(spaces, rate)
                for ranks in options.ranks:
                    predicted = predict(workload, strategy, latency, rate, ranks)
                    name = f"{strategy}-{rate:g}-{ranks}"
                    measured = train(Path(folder), name, spaces[:ranks], strategy, options.batch_size)
                    row = {
                        "strategy": strategy,
                        "mbit_s": rate,
                        "ranks": ranks,
                        "predicted_ms": predicted.seconds * 1e3,
                        "measured_ms": measured * 1e3,
                        "error": predicted.seconds / measured - 1,
                        "communication": 1 - predicted.compute / predicted.seconds,
                    }
                    rows.append(row)
                    print(json.dumps(row), file=sys.stderr, flush=True)
                    with open(options.output, "a") as file:
                        file.write(json.dumps(row) + "\n")
    print(table(rows))


def one_rank(folder: Path, batch: int) -> Workload:
    """The record of a rank that trains alone."""
    command = [sys.executable, "-m", "hvdtrain", "train", "--strategy", "single", *settings(folder, "single", batch)]
    subprocess.run(command, env=environment(), check=True, timeout=SECONDS, stdout=subprocess.DEVNULL)
    return read_workload((folder / "single",))[0]


def settings(folder: Path, name: str, batch: int) -> list[str]:
    """Options of training for a job whose ranks have `batch` images each."""
    return [
        *("--recipe", "book", "--data", "synthetic", "--batch-scope", "per-rank", "--batch-size", str(batch)),
        *("--max-steps", str(STEPS), "--log-every", str(LOG_EVERY), "--runs", str(folder), "--name", name),
        *("--quiet", "--hang-timeout", "600"),
    ]


def unlimited(name: str) -> Fit:
    """The library between two ranks of this machine, without a limit: its latency."""
    options = AllreduceBenchOptions(np=2, sizes=(8, 1024, 16384), repeats=1, idle_seconds=0)
    of = library(name)
    times = measure(of.row, options)
    measured = [Measured(2, size, seconds) for size, seconds in times.seconds.items()]
    return fit(measured, of.algorithm, of.row_coordination)


def predict(workload: Workload, strategy: str, latency: Fit, rate: float, ranks: int) -> StepTime:
    """The step of `ranks` ranks on links of `rate` Mbit/s."""
    shared = max(ranks / len(os.sched_getaffinity(0)), 1.0)
    busy = dataclasses.replace(workload, fixed_s=workload.fixed_s * shared, row_s=workload.row_s * shared)
    link = Link(latency.link.latency_s, 8 / (rate * 1e6 * PAYLOAD))
    network = Fit(link, 0.0, 0.0)
    of = library(LIBRARIES[strategy])
    communication = Communication(of.algorithm, network, network, 1, of.coordination)
    overlap = DEFAULT_OVERLAP if of.overlaps else 0.0
    return StepModel(busy, communication, overlap).step(ranks, workload.rows)


def train(folder: Path, name: str, spaces: list[str], strategy: str, batch: int) -> float:
    """Median seconds of a step of a job with one rank in each namespace."""
    command = [sys.executable, "-m", "hvdtrain", "train", "--strategy", strategy, *settings(folder, name, batch)]
    logs = [folder / f"{name}-{rank}.log" for rank in range(len(spaces))]
    with contextlib.ExitStack() as stack:
        if strategy == "horovod":
            store = [*inside(spaces[0]), sys.executable, "-c", STORE.format(port=STORE_PORT)]
            log = folder / f"{name}-store.log"
            server = stack.enter_context(running(store, environment(), log))
            while not log.read_text().startswith("ready"):
                if server.poll() is not None:
                    sys.exit(f"{log.stem}: {log.read_text()[-2000:]}")
                time.sleep(0.1)
        jobs = []
        for rank, space in enumerate(spaces):
            variables = {**environment(), **identity(rank, len(spaces), strategy)}
            jobs.append(stack.enter_context(running([*inside(space), *command], variables, logs[rank])))
        while any(job.poll() is None for job in jobs):
            for job, log in zip(jobs, logs, strict=True):
                if job.poll():  # the others may wait for it
                    sys.exit(f"{log.stem}: ended with status {job.returncode}: {log.read_text()[-2000:]}")
            time.sleep(0.2)
    result = json.loads((folder / name / "result.json").read_text())
    return result["global_batch"] / result["images_per_s"]


@contextlib.contextmanager
def running(command: list[str], variables: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that writes to a log, and is killed at the end."""
    with open(log, "w") as file:
        process = subprocess.Popen(command, env=variables, stdout=file, stderr=file, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def identity(rank: int, size: int, strategy: str) -> dict[str, str]:
    """The variables by which a rank knows its place, as launchers set them."""
    own = {
        "HVDTRAIN_RANK": rank,
        "HVDTRAIN_SIZE": size,
        "HVDTRAIN_LOCAL_RANK": 0,
        "HVDTRAIN_TOKEN": TOKEN,
        "MASTER_ADDR": f"{SUBNET}.1",
        "MASTER_PORT": 29600,
    }
    horovod = {
        "RANK": rank,
        "SIZE": size,
        "LOCAL_RANK": 0,
        "LOCAL_SIZE": 1,
        "CROSS_RANK": rank,
        "CROSS_SIZE": size,
        "HOSTNAME": f"host{rank}",
        "GLOO_RENDEZVOUS_ADDR": f"{SUBNET}.1",
        "GLOO_RENDEZVOUS_PORT": STORE_PORT,
        "GLOO_IFACE": "eth0",
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
    }
    if strategy == "horovod":
        own |= {f"HOROVOD_{name}": value for name, value in horovod.items()}
    return {name: str(value) for name, value in own.items()}


TOKEN = secrets.token_hex(16)


def inside(space: str) -> list[str]:
    """The start of a command line that runs in a namespace."""
    return ["ip", "netns", "exec", space]


def do(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")


@contextlib.contextmanager
def hosts(count: int) -> Iterator[list[str]]:
    """Network namespaces, each with eth0 on one switch."""
    mark = f"hvdtrain-{os.getpid()}"
    spaces, switch = [f"{mark}-{number}" for number in range(count)], f"{mark}-switch"
    try:
        do("ip", "netns", "add", switch)
        do("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        do("ip", "-n", switch, "link", "set", "br0", "up")
        for number, space in enumerate(spaces):
            do("ip", "netns", "add", space)
            port = f"to-{number}"
            do("ip", "link", "add", "eth0", "netns", space, "type", "veth", "peer", "name", port, "netns", switch)
            do("ip", "-n", switch, "link", "set", port, "master", "br0", "up")
            do("ip", "-n", space, "addr", "add", f"{SUBNET}.{number + 1}/24", "dev", "eth0")
            # Horovod's process sets use the address of the host's name, whatever HOROVOD_GLOO_IFACE says; `ip netns
            # exec` puts this file in the place of /etc/hosts.
            names = ETC / space / "hosts"
            names.parent.mkdir(parents=True)
            names.write_text(f"127.0.0.1 localhost\n{SUBNET}.{number + 1} {os.uname().nodename}\n")
            for link in ("eth0", "lo"):
                do("ip", "-n", space, "link", "set", link, "up")
            # Congestion control that estimates the bandwidth (BBR) would measure itself, not the link.
            do(*inside(space), "sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno")
        yield spaces
    finally:
        for space in (*spaces, switch):
            subprocess.run(["ip", "netns", "del", space], capture_output=True)
            shutil.rmtree(ETC / space, ignore_errors=True)


def limit(spaces: list[str], rate: float) -> None:
    """Limit what each host sends to `rate` Mbit/s."""
    for space in spaces:
        limit = ("tbf", "rate", f"{rate}mbit", "burst", "5kb", "limit", "1mb")
        do("tc", "-n", space, "qdisc", "replace", "dev", "eth0", "root", *limit)


def table(rows: list[dict[str, float]]) -> str:
    """All rows in Markdown, and the median error."""
    lines = [
        "| strategy | link, Mbit/s | ranks | step predicted, ms | measured, ms | error | communication |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        lines.append(
            f"| {row['strategy']} | {row['mbit_s']:g} | {row['ranks']} | {row['predicted_ms']:,.0f} "
            f"| {row['measured_ms']:,.0f} | {row['error']:+.1%} | {row['communication']:.0%} |"
        )
    errors = statistics.median(abs(row["error"]) for row in rows)
    return "\n".join([*lines, "", f"Median error: {errors:.1%}."])


if __name__ == "__main__":
    main()
