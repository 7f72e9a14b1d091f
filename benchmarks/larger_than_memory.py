"""A part of make bench: data of four times the memory of its process, compared with the same rows in memory.

usage: python benchmarks/larger_than_memory.py [--steps N] [--repeats N] [--limit MIB] [--folder DIR] [--output FILE]

One rank trains with one thread, so that a second core is free to read and decode: ResNet-20 with a first convolution
of stride 2, on JPEG images of 3 x 64 x 64 in tar shards, 64 a step. Both the shards and the decoded images have at
least four times the bytes of the limit. Rows are taken at random from all shards, and every row at most once.

The job with a limit runs in a control group of its own, to which the kernel charges the pages of the files that it
also reads. So that no other page cache helps, the shards are dropped from it before each job, which is checked; and so
that the group's own page cache is as full as after hours, the job first reads as much of the shards as its limit is.
A virtual machine's host may have a cache of its own.

Needs root, for the control group, and disk space of four times the limit; without a control group it says so, and ends.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import signal
import statistics
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from limited_memory import limited_memory
from PIL import Image
from run import HERE, Runs, start, verdict

from hvdtrain.errors import UserError
from hvdtrain.views.table import spread

LIMITED, IN_MEMORY = "tar shards, {} MiB of memory", "the same rows in memory"
LEAST = 0.9
"""Of the speed of the rows in memory: the goal for data of FACTOR times the limit."""
FACTOR, SIDE, ROWS, TEST_ROWS, CLASSES = 4, 64, 2000, 64, 10
"""ROWS: of a shard, which all have the same content."""
SAMPLES, MOST_CACHED = 500, 0.02
"""Places of the shards that are looked for in the page cache, and the share of them that may be there before a job."""
FILL = 'head -qc {} "$SHARDS"/train-*.tar | head -c {} > /dev/null; exec "$@"'


def main() -> None:
    """Run all jobs, append their results to the output file, and print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="steps of a job, at least 30; default: 60")
    parser.add_argument("--repeats", type=int, default=3, help="how often each job runs; default: 3")
    parser.add_argument("--limit", type=int, default=512, help="memory of the job in MiB; default: 512")
    parser.add_argument("--folder", type=Path, default=Path("runs"), help="where the shards are made; default: runs")
    parser.add_argument("--output", type=Path, default=Path("runs/larger-than-memory.jsonl"), help="file of results")
    options = parser.parse_args()
    limit = options.limit << 20
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # also removes the shards and the control group
    try:
        with limited_memory(limit):
            pass
    except UserError as error:
        print(f"larger_than_memory.py: skipped: {error}")
        return
    for folder in (options.folder, options.output.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="shards-") as shards:
        size, rows = write_shards(Path(shards), limit)
        results: dict[str, Runs] = {LIMITED.format(options.limit): [], IN_MEMORY: []}
        for repeat in range(options.repeats):
            for name, done in results.items():
                print(f"repeat {repeat + 1}/{options.repeats}: {name}", file=sys.stderr, flush=True)
                done.append(measure(Path(shards), name, 0 if name == IN_MEMORY else limit, options.steps))
                with open(options.output, "a") as file:
                    file.write(json.dumps({"row": name, "repeat": repeat, **done[-1]}) + "\n")
    print(f"{rows:,} rows, {size >> 20:,} MiB of shards, {rows * 3 * SIDE**2 >> 20:,} MiB decoded\n")
    print(table(results))


def write_shards(folder: Path, limit: int) -> tuple[int, int]:
    """Shards of at least FACTOR times the limit, on the disk and decoded; their bytes, and the number of their rows."""
    shard, test = archive(0, ROWS), archive(ROWS, TEST_ROWS)
    count = -(-FACTOR * limit // min(len(shard), ROWS * 3 * SIDE**2))
    for number in range(count):
        (folder / f"train-{number:06}.tar").write_bytes(shard)
    (folder / "test-000000.tar").write_bytes(test)
    return count * len(shard), count * ROWS


def archive(seed: int, rows: int) -> bytes:
    """A tar archive of JPEG images with the names of WebDataset."""
    rng, content = np.random.default_rng(seed), io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as shard:
        for row in range(rows):
            coarse = rng.integers(0, 256, (SIDE // 8, SIDE // 8, 3), np.uint8)
            smooth = np.asarray(Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.int16)
            pixels = np.clip(smooth + rng.integers(-64, 65, smooth.shape), 0, 255).astype(np.uint8)
            image = io.BytesIO()
            Image.fromarray(pixels).save(image, "JPEG", quality=97, subsampling=0)
            for suffix, member in (("jpg", image.getvalue()), ("cls", f"{row % CLASSES}".encode())):
                header = tarfile.TarInfo(f"{row:06}.{suffix}")
                header.size = len(member)
                shard.addfile(header, io.BytesIO(member))
    return content.getvalue()


def measure(shards: Path, name: str, limit: int, steps: int) -> dict[str, float]:
    """Run one job, with a limit of its memory in bytes or without (0); its figures."""
    cached = drop_from_cache(shards)
    if limit and cached > MOST_CACHED:
        sys.exit(f"{cached:.0%} of {shards} stay in the page cache: put --folder on a disk")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        group = stack.enter_context(limited_memory(limit)) if limit else None
        data = f"{HERE / 'shard_rows.py'}:{'from_shards' if limit else 'in_memory'}"
        place = ["--runs", folder, "--name", "job", "--max-steps", str(steps), "--log-every", "10", "--quiet"]
        training = [
            "--strategy",
            "single",
            "--batch-size",
            "64",
            "--model",
            f"{HERE / 'resnet20_half.py'}:NETWORK",
            "--init",
            "he",
        ]
        command = [sys.executable, "-m", "hvdtrain", "train", "--data", data, *training, *place]
        # The first part of every shard.
        fill = FILL.format(limit // len(list(shards.glob("train-*.tar"))) + 1, limit)
        wrapper = [*group.command, "sh", "-c", fill, "sh"] if group else []
        start([*wrapper, *command], {"SHARDS": str(shards)})
        result = json.loads(Path(folder, "job", "result.json").read_text())
        peak = {"peak_of_group_mb": group.peak / 2**20} if group else {}
    return {key: result[key] for key in ("images_per_s", "peak_rss_mb", "data_wait_share")} | peak


def drop_from_cache(shards: Path) -> float:
    """Drop the shards from the page cache; the share of some places that stay there."""
    os.sync()
    found, places = 0, list(sampled(sorted(shards.glob("*.tar"))))
    for path in shards.glob("*.tar"):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    for path, offset in places:
        with open(path, "rb", buffering=0) as file, contextlib.suppress(BlockingIOError):
            found += os.preadv(file.fileno(), [bytearray(1)], offset, os.RWF_NOWAIT)
    return found / len(places)


def sampled(paths: list[Path]) -> Iterator[tuple[Path, int]]:
    """Random places in files: path and offset."""
    rng = np.random.default_rng(0)
    for number in rng.integers(0, len(paths), SAMPLES):
        yield paths[number], int(rng.integers(0, paths[number].stat().st_size))


def table(results: dict[str, Runs]) -> str:
    """All figures in Markdown, and the ratio of the two speeds."""
    lines = [
        "| rows | images/s | waited for data | peak memory, MiB | ratio | at least |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    limited, in_memory = results.values()
    pairs = zip(limited, in_memory, strict=True)
    ratios = [one["images_per_s"] / other["images_per_s"] for one, other in pairs]
    reached = verdict(spread(ratios, ".3f"), statistics.median(ratios) >= LEAST)
    for name, runs in results.items():
        speed, waited = ([run[key] for run in runs] for key in ("images_per_s", "data_wait_share"))
        memory = [run.get("peak_of_group_mb", run["peak_rss_mb"]) for run in runs]
        last = f"{reached} | {LEAST}" if runs is limited else " | "
        lines.append(
            f"| {name} | {spread(speed, ',.0f')} | {spread(waited, '.1%')} | {spread(memory, ',.0f')} | {last} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
