"""The HTML page in Chromium."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from support.report import sample, write

from hvdtrain.views.report.charts import FRAMEWORK_COLORS

WIDTHS = (375, 1280)
# Shows the page, unchanged, in frames as wide as a phone and a desktop computer; measures it and writes the result into
# its own text.
FRAME = '<iframe srcdoc="%s" style="border:0;width:%dpx;height:800px"></iframe>'
WRAPPER = """<!DOCTYPE html><html><body style="margin:0">%s<pre id="found"></pre><script>
const measure = async page => {
  await Promise.all([...page.images].map(image => image.decode()));
  const root = page.documentElement, all = [...page.body.querySelectorAll("*")];
  const window = page.defaultView, style = window.getComputedStyle(page.body);
  const texts = all.filter(one => [...one.childNodes].some(node => node.nodeType == 3 && node.data.trim()));
  const top = choice => page.querySelector(choice).getBoundingClientRect().top;
  const ordered = [".findings p", "td[data-heading='images/s']", "#charts", "#machine", "#definitions"];
  return {
    pictures: [...page.images].map(image => [image.naturalWidth, image.naturalHeight]),
    page: root.scrollWidth, window: root.clientWidth,
    wide: all.filter(one => one.getBoundingClientRect().right > root.clientWidth + 1).map(one => one.tagName),
    font: Math.min(...texts.map(one => parseFloat(window.getComputedStyle(one).fontSize))),
    places: ordered.map(top),
    broken: [...page.querySelectorAll("thead th")].filter(one => one.closest("thead").offsetWidth > 1).flatMap(one => {
      const words = [...one.textContent.matchAll(/\\S+/g)];
      const node = one.firstChild, range = page.createRange();
      return words.filter(word => word.index + word[0].length <= node.length).filter(word => {
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        return range.getClientRects().length > 1;
      }).map(word => word[0]);
    }),
    colors: texts.map(one => window.getComputedStyle(one).color), background: style.backgroundColor,
  };
};
addEventListener("load", async () => {
  const pages = [...document.querySelectorAll("iframe")].map(frame => frame.contentDocument);
  document.getElementById("found").textContent = JSON.stringify(await Promise.all(pages.map(measure)));
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


def luminance(color):
    """Relative luminance of a color such as `rgb(1, 2, 3)` (WCAG 2.2)."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_page_is_readable_on_a_phone_and_a_desktop_computer(tmp_path, browser, scheme):
    """All charts load, nothing needs sideways scrolling or zoom, and what came out and the figures are first."""
    page = (write(tmp_path, sample(tmp_path / "runs")) / "report.html").read_text()
    wrapper = tmp_path / "wrapper.html"
    wrapper.write_text(WRAPPER % "".join(FRAME % (html.escape(page), width) for width in WIDTHS))
    dark = f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}"
    output = browse(browser, tmp_path, wrapper, "--virtual-time-budget=20000", "--dump-dom", dark, size="1700,900")
    pages = json.loads(html.unescape(re.search('<pre id="found">(.*?)</pre>', output)[1]))
    for width, found in zip(WIDTHS, pages, strict=True):
        assert len(found["pictures"]) == 7
        assert all(natural_width > 300 and height > 150 for natural_width, height in found["pictures"])
        assert found["window"] in (width, width - 15)  # a scroll bar
        assert found["page"] <= found["window"] and not found["wide"]
        assert found["font"] >= 12 and not found["broken"]
        assert found["places"] == sorted(found["places"]) and found["places"][1] < 700
        assert min(contrast(color, found["background"]) for color in found["colors"]) > 4.5
        assert (luminance(found["background"]) < 0.1) == (scheme == "dark")


def test_screenshot_shows_the_colors_of_the_charts(tmp_path, browser):
    from PIL import Image

    page = write(tmp_path, sample(tmp_path / "runs")) / "report.html"
    shot = tmp_path / "shot.png"
    browse(browser, tmp_path, page, f"--screenshot={shot}", size="1000,3000")
    with Image.open(shot) as image:
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
    for color in FRAMEWORK_COLORS.values():
        wanted = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)])
        assert (np.abs(pixels.astype(int) - wanted).max(1) <= 8).sum() > 500, color
