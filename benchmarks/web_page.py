"""Time until the page of `hvdtrain watch --serve` is drawn, in headless Chromium. Run by hand.

usage: python benchmarks/web_page.py [--curves 20] [--records 10000] [--runs 1000]

Three times are measured, from the request until the page is complete: with the curves of runs that the server has not
read before, with the same again, and with many runs. For the last, the processor time that the server takes in each
second while one page is open is also reported.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlencode

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.browser import Browser
from support.live_runs import make_run
from support.web import serving

from hvdtrain.system.run_end import RunEnd

FIGURES = 4
"""Charts of the page that have a curve for each run."""
IDLE_S = 10


def main() -> None:
    """Measure, and print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=int, default=20, help="runs whose curves are drawn; default: 20")
    parser.add_argument("--records", type=int, default=10_000, help="logging steps of each; default: 10000")
    parser.add_argument("--runs", type=int, default=1000, help="runs of the long list; default: 1000")
    options = parser.parse_args()
    print("| page | seconds |\n| --- | ---: |")
    with tempfile.TemporaryDirectory() as folder, Browser(Path(folder, "profile")) as browser:
        browser.resize(1280)
        measure_curves(browser, Path(folder, "few"), options.curves, options.records)
        measure_list(browser, Path(folder, "many"), options.runs)
        assert not browser.errors, browser.errors


def measure_curves(browser: Browser, folder: Path, curves: int, records: int) -> None:
    """The page with the curves of all runs, twice."""
    finished = RunEnd("finished", time=1.0)
    names = [f"run-{number:02}" for number in range(curves)]
    for number, name in enumerate(names):
        make_run(folder / "runs" / name, records, finished, rate=1 + number / 20)
    chosen = urlencode([("compare", name) for name in names])
    with serving(folder) as server:
        for what in ("first", "again"):
            drawn = f"document.querySelectorAll('path.line').length >= {curves * FIGURES}"
            seconds = time_until(browser, f"{server.url}#{chosen}", drawn)
            print(f"| {curves} curves of {records} records, {what} | {seconds:.2f} |", flush=True)
        browser.call("Page.navigate", url="about:blank")


def measure_list(browser: Browser, folder: Path, runs: int) -> None:
    """The page with many runs, and what it costs the server."""
    first = make_run(folder / "runs" / "run-0000", 50, RunEnd("finished", time=1.0))
    recorded = json.loads((first / "config.json").read_text())
    for number in range(1, runs):
        other = folder / "runs" / f"run-{number:04}"
        shutil.copytree(first, other)
        own = {"started": f"2026-05-01T00:00:00.{number:04}", "id": f"{number:016x}"}
        (other / "config.json").write_text(json.dumps(recorded | own))
    time.sleep(4)  # files that were just written are read again, for some seconds
    with serving(folder) as server:
        listed = f"document.getElementById('where').innerText.includes('{runs:,} runs')"
        print(f"| {runs} runs, first | {time_until(browser, server.url, listed):.2f} |")
        print(f"| {runs} runs, again | {time_until(browser, server.url, listed):.2f} |")
        process = psutil.Process(server.process.pid)
        before = sum(process.cpu_times()[:2])
        time.sleep(IDLE_S)
        used = (sum(process.cpu_times()[:2]) - before) / IDLE_S
        browser.call("Page.navigate", url="about:blank")
        print(f"\nServer with {runs} runs and one page open: {used:.1%} of a processor core", flush=True)


def time_until(browser: Browser, address: str, condition: str) -> float:
    """Seconds from opening a page until a condition holds in it."""
    browser.call("Page.navigate", url="about:blank")
    began = time.monotonic()
    browser.call("Page.navigate", url=address)
    browser.wait(condition, 120)
    browser.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return time.monotonic() - began


if __name__ == "__main__":
    main()
