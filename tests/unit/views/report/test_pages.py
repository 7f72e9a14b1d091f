"""The HTML page, names that must not break any page, and folders without runs."""

import html
import json
import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser

from support.in_process import command
from support.report import learning, make_run, report_of, rows, sample, write
from support.run_folders import write_task_run

from hvdtrain.views.report.pages import html_page, markdown_page

ODD = "<script>alert(1)</script> | $x^$ & \"q\" 'r' \x1b[31m \n=1+1 `` \udce4 名"


def test_special_characters_in_names_are_escaped(tmp_path, capsys):
    odd = {"name": ODD, "processor": ODD}
    given = {"data": ODD, "moved": 0.0}
    make_run(tmp_path / "runs" / "<b>&|x", host=odd, **given)
    slow = {"metrics": learning(ranks=2, slow=1), "started": ODD}
    make_run(tmp_path / "runs" / "<i>two\x1b|", host=odd, strategy=ODD, ranks=2, **slow, **given)
    (tmp_path / "runs" / "<i>stopped" / "logs").mkdir(parents=True)
    output = write(tmp_path, tmp_path / "runs")
    page = (output / "report.html").read_text()
    assert "Rank 1 of &lt;i&gt;two\\x1b| takes" in page
    assert page.count("<script") == 2 and "<b>" not in page and "<i>" not in page
    assert html.escape('<script>alert(1)</script> | $x^$ & "q"', quote=False)[:20] in page
    assert any(ODD[:8] in line["name"] for group in drawn(page) for chart in group["charts"] for line in chart["lines"])
    rows = re.findall(r"^\|.*$", (output / "report.md").read_text(), re.M)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in rows} == {8, 9}
    texts = [capsys.readouterr().out, *(path.read_text() for path in output.iterdir())]
    assert not any(character in text for text in texts for character in "\x1b\r\udce4")
    assert not any(character in "".join(rows) for character in "<>")
    assert r"\$x^\$" in "".join(rows)


def test_spreadsheets_run_no_cell(tmp_path):
    for ranks in (1, 2):
        run = make_run(tmp_path / str(ranks), strategy="=1+1", data="-2", framework="torch", ranks=ranks)
        file = run / "config.json"
        file.write_text(file.read_text().replace('"framework": "torch"', '"framework": "@SUM(1)"'))
    for row in rows(tmp_path):
        assert row["strategy"] == "'=1+1"
        assert not any(cell.startswith(("=", "+", "-", "@")) for cell in row.values())


def drawn(page):
    """The groups of lines that the page's script draws."""
    return json.loads(page.partition('type="application/json">')[2].partition("</script>")[0])


class Outline(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.links = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.tags.append((tag, values))
        self.links += [values[name] for name in ("src", "href") if name in values]

    def named(self, tag):
        return [values for name, values in self.tags if name == tag]


def test_page_is_self_contained_accessible_and_reproducible(tmp_path):
    runs = sample(tmp_path / "runs")
    first = {path.name: path.read_bytes() for path in write(tmp_path, runs).iterdir()}
    assert {path.name: path.read_bytes() for path in write(tmp_path, runs).iterdir()} == first
    page = first["report.html"].decode()
    outline = Outline(page)
    assert all(link.startswith("data:") for link in outline.links)
    assert not re.search(r"url\(|@import", page)
    assert outline.named("html") == [{"lang": "en"}]
    assert {values.get("name") for values in outline.named("meta")} >= {"viewport", "color-scheme"}
    assert len(outline.named("figure")) == 3 and len(drawn(page)) == 4
    assert {values["scope"] for values in outline.named("th")} == {"col", "row", "rowgroup"}
    assert len(outline.named("caption")) == len(outline.named("table"))
    assert len(outline.named("title")) == len(outline.named("h1")) == 1
    script = page.partition('<script type="module">')[2].partition("</script>")[0]
    assert f"script-src 'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" in page


def test_metrics_besides_the_score_have_columns(tmp_path):
    for name, perplexity in (("a", 3.0), ("b", 2.0)):
        write_task_run(tmp_path / "runs" / name, {"perplexity": perplexity, "r2": 0.75}, score="min:perplexity")
    made = report_of(tmp_path / "runs")
    page = markdown_page(made)
    assert "| test r2 |" in page and "| 0.7500 |" in page
    (row,) = rows(tmp_path / "runs")
    assert (float(row["metric:r2"]), float(row["metric:perplexity"]), float(row["score_median"])) == (0.75, 2.5, 2.5)
    assert "test r2" in html_page(made)


def test_classes_are_listed_by_name_from_the_lowest_accuracy(tmp_path):
    for seed, accuracy in ((0, 0.5), (1, 0.7), (2, 0.6)):
        classes = {"zebra": accuracy, "<b>ant": 0.9, "without images": float("nan")}
        make_run(tmp_path / "runs" / str(seed), seed=seed, per_class_accuracy=classes)
    text, page = (make(report_of(tmp_path / "runs")) for make in (markdown_page, html_page))
    assert "- zebra: 0.6000 (0.5000 to 0.7000)\n- &lt;b&gt;ant: 0.9000\n" in text
    assert "<li>zebra: 0.6000 (0.5000 to 0.7000)</li>" in page and "<b>" not in page
    assert "without images" not in text
    many = {f"class {number:03}": 1 - number / 1000 for number in range(100)}
    assert "- class " not in markdown_page(report_of(make_run(tmp_path / "many", per_class_accuracy=many)))


def test_folders_without_whole_finished_runs_are_an_error_of_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "half" / "run" / "logs").mkdir(parents=True)
    make_run(tmp_path / "bad").joinpath("result.json").write_text("{")
    for name, problem in (
        ("none", "none: no such folder; give"),
        ("file", "file: not a folder; give"),
        ("empty", "empty: no finished run there; give run folders"),
        ("half", "no finished run there (1 did not finish: "),
        ("bad", "bad/result.json: is not what hvdtrain writes ("),
    ):
        status, output = command(tmp_path, "report", name, "--output", "out")
        assert (status, output.count("\n")) == (2, 1) and problem in output
    assert not (tmp_path / "out").exists()


def test_output_that_cannot_be_written_is_unchanged(tmp_path):
    make_run(tmp_path / "run")
    (tmp_path / "out" / "report.html").mkdir(parents=True)
    status, output = command(tmp_path, "report", "run", "--output", "out")
    assert (status, output.count("\n")) == (2, 1) and "give another --output" in output
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]
