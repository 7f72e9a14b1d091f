"""A timeline drawn in Chromium, as docs/timeline.png is."""

import importlib.util
import json
import re
import shutil
import subprocess

import pytest
from support.jobs import ROOT
from support.timeline_steps import sent, step

from hvdtrain.runs.timeline.horovod_events import RankSteps, add_given
from hvdtrain.runs.timeline.trace_file import trace

DRAWN = r'<div class="span" title="([\w ]+): ([\d.]+) ms" style="left: ([\d.]+)%; width: ([\d.]+)%'
spec = importlib.util.spec_from_file_location("timeline_picture", ROOT / "docs" / "pictures" / "timeline.py")
picture = importlib.util.module_from_spec(spec)
spec.loader.exec_module(picture)


@pytest.fixture
def browser():
    found = next(filter(None, map(shutil.which, picture.BROWSERS)), None)
    if not found:
        pytest.skip(f"needs a browser: none of {', '.join(picture.BROWSERS)} is on PATH")
    return found


def test_each_span_is_drawn_where_it_belongs(tmp_path, browser):
    """And a name that looks like a tag is text."""
    ranks = [RankSteps(rank, "<img src=x>", [step(5, 0), step(6, 10, forward=3 + rank)]) for rank in range(2)]
    messages = [sent(8), sent(19)]
    add_given(messages, ranks)
    content = trace(ranks, messages, {})
    page = tmp_path / "timeline.html"
    page.write_text(picture.page(json.dumps(content)))
    options = ("--enable-logging=stderr", "--v=0", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom")
    command = [browser, *picture.FLAGS, *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr, done.stderr
    drawn = re.findall(DRAWN, done.stdout)
    spans = [event for event in content["traceEvents"] if event["ph"] == "X"]
    end = max(span["ts"] + span["dur"] for span in spans) / 100
    expected = [(one["name"], one["dur"] / 1000, one["ts"] / end, one["dur"] / end) for one in spans]
    found = [(name, *map(float, numbers)) for name, *numbers in drawn]
    assert len(found) == len(expected)
    for one, other in zip(sorted(found), sorted(expected), strict=True):
        assert one[0] == other[0]
        assert one[1:] == pytest.approx(other[1:], abs=0.01)
    assert done.stdout.count("rank 0 (&lt;img src=x&gt;)") == 1
