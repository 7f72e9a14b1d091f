"""Draw the pictures of docs/runs.md: the page of made-up runs, in headless Chromium (`make docs-pictures`).

The runs are made up so that the pictures are the same on every machine; of a job of 8 ranks, rank 5 is slow.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from support.browser import Browser
from support.live_runs import RunningRanks, make_run
from support.web import serving

from hvdtrain.system.run_end import Failure, RunEnd

DOCS = Path(__file__).parents[1]
LIVE, RANKS, SLOW = "resnet20-torch-np8", 8, 5
WATCHED_S = 4
"""For how long the page follows the job before the picture."""


def main() -> None:
    """Make the runs, and take the pictures while the last one trains."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_runs(folder / "runs")
        with (
            RunningRanks(folder / "runs" / LIVE, RANKS, slow=SLOW, step=1000),
            serving(folder) as server,
            Browser(folder / "profile") as browser,
        ):
            take_pictures(browser, server.url)


def make_runs(folder: Path) -> None:
    """Runs in several states."""
    finished = RunEnd("finished", time=1.0)
    loss = RunEnd("failed", 1, Failure("the loss of step 340 is not finite: inf", stands_alone=True), 1.0)
    where = "rank 3 (process 4211 on node2) is at reader.py:88 in read, step 1200, and the other ranks wait for it"
    hang = Failure(f"no step for 60 s: {where}", rank=3, host="node2", stands_alone=True)
    hung = RunEnd("hung", 4, hang, 1.0)
    make_run(folder / "lenet-torch-lr0.05", 200, finished, lr=0.05, rate=0.8, steps=2000, started="2026-05-01T09:12:03")
    make_run(folder / "lenet-torch-lr0.1", 200, finished, lr=0.1, rate=1.2, steps=2000, started="2026-05-01T09:31:40")
    make_run(folder / "lenet-torch-lr0.4", 34, loss, lr=0.4, rate=0.3, steps=2000, started="2026-05-01T09:50:12")
    make_run(folder / "lenet-mxnet-np4", 200, finished, ranks=4, framework="mxnet", rate=1.05, steps=2000,
             started="2026-05-01T10:03:55")  # fmt: skip
    make_run(folder / "lenet-tensorflow-np4", 200, finished, ranks=4, framework="tensorflow", rate=1.1, steps=2000,
             started="2026-05-01T10:20:31")  # fmt: skip
    make_run(folder / "resnet20-ddp-np4", 120, hung, ranks=4, strategy="ddp", model="resnet20", rate=0.9,
             started="2026-05-01T10:41:17")  # fmt: skip
    make_run(folder / LIVE, 150, ranks=RANKS, slow=SLOW, model="resnet20", started="2026-05-01T11:05:09")


def take_pictures(browser: Browser, url: str) -> None:
    """Of the runs on a desktop, and of the ranks on a phone."""
    browser.darken(False)
    browser.resize(1280, 690)
    browser.open(f"{url}#smooth=0.6")
    browser.wait("document.querySelectorAll('path.line').length >= 20")
    browser.wait("document.querySelector('#runs tbody').innerText.includes('rank 5 is slow')")
    save(browser.picture(), DOCS / "web-runs.webp")
    browser.resize(375, 1130, 1.5)
    browser.open(f"{url}#run={LIVE}")
    browser.wait("document.querySelector('#ranks tr.marked')")
    browser.run(f"new Promise(done => setTimeout(done, {WATCHED_S * 1000}))")
    save(browser.picture(), DOCS / "web-ranks.webp")


def save(content: bytes, path: Path) -> None:
    """Write a picture in a format that needs a third of the space."""
    with Image.open(io.BytesIO(content)) as picture:
        picture.convert("RGB").save(path, lossless=True, quality=100, method=6)


if __name__ == "__main__":
    main()
