"""The HTML page in Chromium."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from support.report import sample, write

from hvdtrain.report import charts

# Shows the page, unchanged, in a frame; measures it and writes the result into its own text.
WRAPPER = """<!DOCTYPE html><html><body style="margin:0"><iframe id="frame" srcdoc="%s" style="border:0;width:%dpx;
height:800px"></iframe><pre id="found"></pre><script>
addEventListener("load", async () => {
  const page = document.getElementById("frame").contentDocument;
  await Promise.all([...page.images].map(image => image.decode()));
  const pictures = [...page.images].map(image => [image.naturalWidth, image.naturalHeight,
      image.getBoundingClientRect().right]);
  const root = page.documentElement, table = page.querySelector(".wide");
  document.getElementById("found").textContent = JSON.stringify({pictures, page: root.scrollWidth,
      window: root.clientWidth, table: table.scrollWidth, box: table.clientWidth});
});
</script></body></html>"""


@pytest.fixture(scope="session")
def browser():
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if not found:
        pytest.skip(f"needs a browser: none of {', '.join(names)} is on PATH (Debian: apt-get install chromium)")
    return found


def browse(browser, folder, page, *flags, size="1200,900"):
    """What Chromium prints for a page; the page must not log any message."""
    command = [
        browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--enable-logging=stderr", "--v=0", f"--user-data-dir={folder / 'profile'}",
        f"--window-size={size}", *flags, page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.parametrize("width", [390, 1200])
def test_page_fits_the_window(tmp_path, browser, width):
    """All charts load, and the page is not wider than the window of a phone or a desktop computer."""
    page = (write(tmp_path, sample(tmp_path / "runs")) / "report.html").read_text()
    wrapper = tmp_path / "wrapper.html"
    wrapper.write_text(WRAPPER % (html.escape(page), width))
    output = browse(browser, tmp_path, wrapper, "--virtual-time-budget=20000", "--dump-dom")
    found = json.loads(html.unescape(re.search('<pre id="found">(.*?)</pre>', output)[1]))
    assert len(found["pictures"]) == 5
    for natural_width, natural_height, right in found["pictures"]:
        assert natural_width > 300 and natural_height > 150
        assert right <= width
    assert found["window"] == width or found["window"] == width - 15  # a scroll bar
    assert found["page"] <= found["window"]
    if width == 390:
        assert found["table"] <= found["box"]  # each row is a list of its figures, which needs no scrolling


def test_screenshot_shows_the_colors_of_the_charts(tmp_path, browser):
    from PIL import Image

    page = write(tmp_path, sample(tmp_path / "runs")) / "report.html"
    shot = tmp_path / "shot.png"
    browse(browser, tmp_path, page, f"--screenshot={shot}", size="1000,3000")
    with Image.open(shot) as image:
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
    for color in charts.COLORS.values():
        wanted = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)])
        assert (np.abs(pixels.astype(int) - wanted).max(1) <= 8).sum() > 500, color
