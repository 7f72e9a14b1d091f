"""The HTML page in Chromium."""

import re
from pathlib import Path

import pytest
from support.report import make_run, sample, write

STYLE_OF_DOCS = Path(__file__).parents[4] / "docs" / "style" / "tables.css"

WIDTHS = (375, 1280)
MEASURE = """(async () => {
  await new Promise(requestAnimationFrame);
  const root = document.documentElement, all = [...document.body.querySelectorAll("*")];
  const hasText = one => [...one.childNodes].some(node => node.nodeType == 3 && node.data.trim());
  const texts = all.filter(one => !one.matches("script, noscript") && hasText(one));
  const top = choice => document.querySelector(choice).getBoundingClientRect().top;
  const ordered = [".findings p", "td[data-heading^='images/s']", "#charts", "#machine", "#definitions"];
  return {
    charts: [...document.querySelectorAll("svg.chart")].map(
      one => [one.clientWidth, one.clientHeight, one.querySelectorAll("path.line").length]),
    page: root.scrollWidth, window: root.clientWidth,
    wide: all.filter(one => one.getBoundingClientRect().right > root.clientWidth + 1).map(one => one.tagName),
    font: Math.min(...texts.map(one => parseFloat(getComputedStyle(one).fontSize))),
    places: ordered.map(top),
    broken: [...document.querySelectorAll("thead th")].filter(one => one.closest("thead").offsetWidth > 1).flatMap(
      one => {
        const words = [...one.textContent.matchAll(/\\S+/g)];
        const node = one.firstChild, range = document.createRange();
        return words.filter(word => word.index + word[0].length <= node.length).filter(word => {
          range.setStart(node, word.index);
          range.setEnd(node, word.index + word[0].length);
          return range.getClientRects().length > 1;
        }).map(word => word[0]);
      }),
    colors: texts.map(one => getComputedStyle(one).color),
    background: getComputedStyle(document.body).backgroundColor,
  };
})()"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory, browser):
    """The browser with the page of a report that has every chart."""
    folder = tmp_path_factory.mktemp("report")
    page = write(folder, sample(folder / "runs")) / "report.html"
    browser.open(page.as_uri())
    browser.wait("document.querySelectorAll('svg.chart').length === 6")
    yield browser
    assert browser.errors == []
    browser.leave()


def luminance(color):
    """Relative luminance of a color such as `rgb(1, 2, 3)` (WCAG 2.2)."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("is_dark", [True, False])
@pytest.mark.parametrize("width", WIDTHS)
def test_page_is_readable_on_a_phone_and_a_desktop_computer(shown, width, is_dark):
    """All charts load, nothing needs sideways scrolling or zoom, and what came out and the figures are first."""
    shown.resize(width)
    shown.darken(is_dark)
    found = shown.run(MEASURE)
    assert all(width > 200 and height > 150 and lines > 1 for width, height, lines in found["charts"])
    assert found["window"] in (width, width - 15)  # a scroll bar
    assert found["page"] <= found["window"] and not found["wide"]
    assert found["font"] >= 12 and not found["broken"]
    assert found["places"] == sorted(found["places"]) and found["places"][1] < 700
    assert min(contrast(color, found["background"]) for color in found["colors"]) > 4.5
    assert (luminance(found["background"]) < 0.1) == is_dark


def wide_report(folder):
    """With a table that is wider than a small window."""
    given = {"lr": 0.123456789, "momentum": 0.123456789, "weight_decay": 0.123456789, "clip_norm": 123456789.0}
    given["epsilon"] = 0.123456789
    for name, options in (("a", {}), ("b", given)):
        make_run(folder / "runs" / name, **options, metrics=[{"kind": "test", "step": 1, "epoch": 1, "loss": 1.0}])
    return write(folder, folder / "runs") / "report.html"


def wide_page_of_docs(folder):
    """A table as Sphinx writes it, with the colors and the layout that its theme gives it."""
    style = (
        ":root { --color-background-primary: #fff; --color-foreground-primary: #000 } .table-wrapper { overflow: auto }"
    )
    row = f"<tr>{'<td>configuration</td>' * 20}</tr>"
    page = folder / "page.html"
    link = f'<link rel="stylesheet" href="{STYLE_OF_DOCS.as_uri()}">'
    link += '<meta name="viewport" content="width=device-width">'
    page.write_text(f'<style>{style}</style>{link}<div class="table-wrapper table"><table>{row}</table></div>')
    return page


@pytest.mark.parametrize(("make", "width"), [(wide_report, 1000), (wide_page_of_docs, 375)])
def test_a_wide_table_scrolls_by_itself_under_a_shadow(browser, tmp_path, make, width):
    """A phone has no scroll bar that shows that there is more."""
    browser.resize(width)
    browser.open(make(tmp_path).as_uri())
    browser.wait("document.readyState === 'complete'")
    box = "document.querySelector('.scrolls, .table')"
    assert browser.run(f"{box}.scrollWidth - {box}.clientWidth") > 0
    assert browser.run("document.documentElement.scrollWidth") <= width
    style = browser.run(f"[getComputedStyle({box}).backgroundImage, getComputedStyle({box}).backgroundAttachment]")
    assert style[0].count("linear-gradient") == 4 and style[1] == "local, local, scroll, scroll"
    assert browser.errors == []
