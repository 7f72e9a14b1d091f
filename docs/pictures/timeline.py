"""Draw docs/timeline.png, a timeline of a real run on two processes, in Chromium: `make docs-pictures`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

COMMAND = "launch local -n 2 -- python -m hvdtrain.torch_lenet --groups 2 --max-steps 130 --timeline 120:123 --name run"
PICTURE = Path(__file__).parents[1] / "timeline.png"
PAGE = Path(__file__).with_name("timeline_page.html")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")


def page(trace: str) -> str:
    """The page that draws a timeline, whose file has this content."""
    return PAGE.read_text().replace("TRACE", trace.replace("<", "\\u003c"))


def draw(trace: Path, picture: Path, size: str) -> None:
    """Draw the timeline in a file. size: of the picture, WIDTH,HEIGHT."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None) or sys.exit(f"needs one of {', '.join(BROWSERS)}")
    with tempfile.TemporaryDirectory() as folder:
        shown = Path(folder, "timeline.html")
        shown.write_text(page(trace.read_text()))
        options = (f"--user-data-dir={folder}/profile", f"--window-size={size}", f"--screenshot={picture}")
        subprocess.run([browser, *FLAGS, *options, shown.as_uri()], check=True, capture_output=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "hvdtrain", *COMMAND.split()], cwd=folder, check=True)
        draw(Path(folder, "runs/run/timeline-120-123.json"), PICTURE, "1200,370")
