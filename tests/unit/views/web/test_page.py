"""The page in Chromium, on a phone and on a desktop: what it shows, and how it changes."""

import os
import shutil
import time

import pytest
from support.live_runs import RunningRanks, make_run, records
from support.run_folders import write_changes, write_task_run
from support.web import serving

from hvdtrain.system.run_end import Failure, RunEnd

FINISHED = RunEnd("finished", time=1.0)
HOSTILE = "<img src=x onerror=hacked=1>\"'&\x1b\x07\u202egnp-" + "long" * 40
ROWS = "[...document.querySelectorAll('#runs tbody tr:not(.reasons)')]"
NAMES_OF_ROWS = ROWS + ".map(row => row.querySelector('th').innerText)"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A job of 8 ranks that trains, with rank 5 slow; runs that ended; and one with hostile content."""
    folder = tmp_path_factory.mktemp("shown") / "runs"
    for number in range(40):
        started, lr = f"2026-04-01T00:{number:02}:00", (number % 7 + 1) / 10
        make_run(folder / f"old-{number:02}", 4, FINISHED, started=started, lr=lr, seed=number)
    stuck = Failure("rank 3 is at reader.py:88 in read", rank=3, host="node2", stands_alone=True)
    make_run(folder / "hung", 60, RunEnd("hung", 4, stuck, 5.0), ranks=4)
    (folder / "hung" / "heartbeats").mkdir()
    (folder / "hung" / "heartbeats" / "stacks-rank-3.txt").write_text("File reader.py, line 88\n")
    make_run(folder / "live", 100, ranks=8, slow=5, started="2026-05-03T00:00:00")
    failed = RunEnd("failed", 1, Failure(HOSTILE), time=1.0)
    hostile = make_run(folder / HOSTILE, 5, failed, started="2026-05-02T00:00:00",
                       framework=HOSTILE, strategy=HOSTILE, model=HOSTILE, data=HOSTILE)  # fmt: skip
    with open(hostile / "metrics.jsonl", "a") as file:
        for step, loss in ((1, 1e300), (9, -1e300)):
            file.write(f'{{"kind":"train","step":{step},"epoch":{3 + step // 9},"loss":{loss}}}\n')
    (hostile / "logs" / "rank-0.log").write_text(f"2026-05-01 10:00:00,000 ERROR {HOSTILE}\n{HOSTILE}\n")
    return folder


@pytest.fixture(scope="module")
def url(runs):
    """The address of the page, while the job trains."""
    with RunningRanks(runs / "live", 8, slow=5, step=1000), serving(runs.parent) as server:
        yield server.url


def check_layout(browser, width):
    """The page is as wide as the window, its text large enough to read, and its console empty."""
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("innerWidth") == width  # a phone would show a wider page smaller
    sizes = browser.run(
        "[...document.querySelectorAll('main *')].filter(node => node.checkVisibility() && "
        "[...node.childNodes].some(child => child.nodeType === 3 && child.data.trim()))"
        ".map(node => parseFloat(getComputedStyle(node).fontSize))"
    )
    assert len(sizes) > 20 and min(sizes) >= 11
    wide = "[...document.querySelectorAll('main *')].filter(node => node.checkVisibility() && !node.closest('svg') && "
    wide += "node.getBoundingClientRect().right > innerWidth + 1).map(node => node.outerHTML.slice(0, 200))"
    assert browser.run(wide) == []
    assert browser.run("typeof hacked") == "undefined"
    assert browser.errors == []


@pytest.mark.parametrize(("width", "is_dark"), [(375, True), (1280, False)])
def test_pages_fit_the_window(browser, url, runs, width, is_dark):
    browser.resize(width)
    browser.darken(is_dark)
    browser.open(url)
    browser.wait(ROWS + ".length === 43")
    browser.wait("document.querySelectorAll('path.line').length >= 5")
    text = browser.text()
    name = browser.run(f"({NAMES_OF_ROWS}).find(name => name.includes('<img'))")
    assert "<img src=x onerror=hacked=1>\"'&\\x1b\\x07\\u202egnp-longlong" in text and "rank 5 is slow" in text
    assert ("✕" in text) and "failed" in text  # states are not told by colors alone
    check_layout(browser, width)
    browser.open(f"{url}#run=live")
    browser.wait("document.querySelectorAll('#ranks tbody tr').length === 8")
    assert "slow: the others wait for it" in browser.run("document.querySelectorAll('#ranks tbody tr')[5].innerText")
    check_layout(browser, width)
    browser.run(f"location.hash = new URLSearchParams({{run: {name!r}, log: 0}})")
    browser.wait("document.getElementById('lines').textContent.includes('<img')")
    browser.wait("document.querySelectorAll('#options dd').length > 10")
    check_layout(browser, width)
    background = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") != is_dark


def test_runs_are_sorted_filtered_and_compared(browser, url):
    browser.resize(1280)
    browser.open(url)
    browser.wait(ROWS + ".length === 43")
    assert browser.run(NAMES_OF_ROWS)[0] == "live"  # the newest
    browser.run("document.querySelector('#runs th[aria-sort] button').focus()")
    browser.run("[...document.querySelectorAll('#runs thead button')].find(one => one.innerText === 'Name').focus()")
    browser.press("Enter")
    browser.wait(NAMES_OF_ROWS + "[0] === 'old-39'")
    browser.run("filter.value = 'OLD 3'; filter.dispatchEvent(new Event('input'))")
    browser.wait(ROWS + ".length === 13")
    browser.run("filter.value = ''; filter.dispatchEvent(new Event('input'))")
    browser.run("[...document.querySelectorAll('#states button')].find(one => one.innerText.includes('hung')).click()")
    browser.wait(NAMES_OF_ROWS + ".join() === 'hung'")
    browser.run("document.querySelector('#runs tbody input').click()")  # one of the newest five, which are chosen
    browser.wait("document.querySelectorAll('#overview-curves .chart-box:first-child path.line').length === 4")
    address = browser.run("location.href")
    browser.open(address)  # all of it is in the address
    browser.wait(NAMES_OF_ROWS + ".join() === 'hung'")
    browser.wait("document.querySelectorAll('#overview-curves .chart-box:first-child path.line').length === 4")
    assert browser.run("document.querySelector('#overview-curves .legend').innerText").count("×") == 4
    browser.run("document.querySelector('.chart').focus()")
    browser.press("End")
    assert "epoch" in browser.run("document.querySelector('.tip:not([hidden])').innerText")
    assert browser.errors == []


def test_options_in_which_runs_differ_are_columns(browser, url):
    """Which sort and filter the table; where it is wider than the window, it scrolls by itself, under a shadow."""
    browser.resize(1280)
    browser.open(f"{url}#sort=-lr")
    browser.wait(ROWS + ".length === 43")
    heads = "[...document.querySelectorAll('#runs thead th')].map(one => one.innerText)"
    assert {"lr", "seed", "Train loss", "Test loss"} <= set(browser.run(heads)) and "batch-size" not in browser.run(
        heads
    )
    assert browser.run(NAMES_OF_ROWS)[:2] == ["old-06", "old-13"]
    browser.run("filter.value = 'lr=0.3 seed=2 old'; filter.dispatchEvent(new Event('input'))")
    browser.wait(f"{NAMES_OF_ROWS}.join() === 'old-02'")
    browser.run("filter.value = ''; filter.dispatchEvent(new Event('input'))")
    browser.wait(ROWS + ".length === 43")
    box = "document.querySelector('#runs').parentElement"
    browser.resize(1000)
    browser.wait(
        f"{box}.className === 'scrolls' && getComputedStyle({box}).backgroundImage.includes('linear-gradient')"
    )
    assert browser.run("document.documentElement.scrollWidth") <= 1000
    browser.resize(1600)
    browser.wait(f"{box}.className === ''")
    assert browser.errors == []


def test_curves_are_smoothed(browser, url):
    """By a debiased average, before the values themselves; the address has how much."""
    browser.resize(1280)
    browser.open(f"{url}#compare=live&figure=train+loss")
    lines = "[...document.querySelectorAll('#overview-curves .chart-box:not([hidden]) path.line')]"
    browser.wait(f"{lines}.length === 1")
    outline = browser.run(f"{lines}[0].getAttribute('d')")
    browser.run(
        "(one => { one.value = 0.9; for (const type of ['input', 'change']) one.dispatchEvent(new Event(type)) })"
        "(document.querySelector('#overview-controls input[type=range]'))"
    )
    browser.wait(f"{lines}.length === 2 && location.hash.includes('smooth=0.9')")
    classes = browser.run(f"{lines}.map(one => one.classList.contains('raw'))")
    assert classes == [True, False]  # the average is in front
    assert browser.run(f"Number(getComputedStyle({lines}[0]).opacity)") < 0.5
    assert browser.run(f"{lines}[0].getAttribute('d')").split("L")[0] == outline.split("L")[0]
    assert browser.run(f"{lines}[1].getAttribute('d')") != outline
    smoothed = "import('./static/curves.js').then(({smoothed}) => smoothed([4, NaN, 2, 2], 0.5).map(String))"
    assert browser.run(smoothed) == ["4", "NaN", str(8 / 3), str(16 / 7)]
    browser.open(browser.run("location.href"))
    browser.wait(f"{lines}.length === 2")
    assert browser.run("document.querySelector('#overview-controls output').innerText") == "0.90"
    assert browser.errors == []


def test_stacks_of_a_rank_are_one_click_away(browser, url, runs):
    browser.open(f"{url}#run=hung")
    browser.wait("document.querySelectorAll('#ranks tbody tr').length === 4")
    assert "rank 3 is at reader.py:88 in read" in browser.run("document.getElementById('one-state').innerText")
    assert "exit status 4, rank 3 on node2" in browser.text()
    browser.run("document.querySelector('#ranks a[href*=\"stacks=3\"]').click()")
    browser.wait("document.getElementById('lines').textContent.includes('line 88')")
    browser.run("document.getElementById('lines-close').click()")
    browser.wait("document.getElementById('lines-section').hidden")
    browser.run("history.back()")
    browser.wait("!document.getElementById('lines-section').hidden")
    browser.open(f"{url}#run=later")
    browser.wait("document.getElementById('missing').innerText.includes('no run of that name')")
    make_run(runs / "later", 5, FINISHED, started="2026-03-01T00:00:00")
    browser.wait("document.getElementById('one-state').innerText.includes('finished')")
    shutil.rmtree(runs / "later")
    browser.wait("!document.getElementById('missing').hidden")
    # A request for what is not there is also an error of the console; it is not repeated.
    assert len(browser.errors) in (2, 3) and all("404" in error for error in browser.errors)
    browser.errors.clear()


def test_the_page_follows_a_run_and_keeps_what_its_user_does(browser, url, runs):
    browser.resize(1280, 500)
    browser.open(f"{url}#sort=name")
    browser.wait(ROWS + ".length === 43")
    browser.run("document.querySelectorAll('#runs tbody input')[20].focus()")
    browser.run("document.activeElement.scrollIntoView({block: 'center'})")
    browser.run("getSelection().selectAllChildren(document.querySelectorAll('#runs tbody th')[10])")
    focused = browser.run("document.activeElement.getAttribute('aria-label')")
    at = "document.activeElement.getBoundingClientRect().top"
    selected, place = browser.run("String(getSelection())"), browser.run(at)
    assert focused and selected
    appears = make_run(runs / "appears", 10, started="2026-05-04T00:00:00")
    RunningRanks(appears, 2).write()
    state = f"{ROWS}.find(row => row.querySelector('th').innerText === 'appears')?.innerText ?? ''"
    try:
        browser.wait(f"({state}).includes('training') || ({state}).includes('waiting')")
        with open(appears / "metrics.jsonl", "a") as file:
            file.write("\n".join(records(30)[10:]) + '\n{"kind": "train", "step": 31')  # a half line
        browser.wait(f"({state}).includes('{'0.'}')")
        FINISHED.write(appears)
        browser.wait(f"({state}).includes('finished')")
        assert browser.run("document.activeElement.getAttribute('aria-label')") == focused
        assert browser.run("String(getSelection())") == selected
        assert abs(browser.run(at) - place) < 2  # the row that came above it moved nothing
    finally:
        shutil.rmtree(appears)
    browser.wait(ROWS + ".length === 43")
    assert browser.errors == []


def test_the_token_becomes_a_cookie_and_a_lost_server_is_told(browser, runs):
    with serving(runs.parent, address="0.0.0.0:0") as server:
        address = f"http://127.0.0.1:{server.port}/"
        browser.open(f"{address}?token={server.token}#sort=name")
        browser.wait(ROWS + ".length === 43")
        assert browser.run("location.href") == f"{address}#sort=name"
        assert browser.run("document.cookie") == ""  # HttpOnly
        browser.open(address)
        browser.wait(ROWS + ".length === 43")
        assert browser.errors == []
    browser.wait("document.getElementById('connection').innerText.includes('no answer since')")
    assert browser.run(ROWS + ".length") == 43
    browser.leave()
    errors = [*browser.errors]
    browser.errors.clear()  # also of requests that the server's end has cut off
    assert all("net::ERR_" in error or "Failed to fetch" in error for error in errors), errors


def test_metrics_empty_folders_and_names_in_several_folders(browser, runs, tmp_path):
    """Charts are of what runs have measured, and none are drawn where nothing is; a run is found by its own name."""
    empty, models, others = tmp_path / "empty", tmp_path / "a" / "runs", tmp_path / "b" / "runs"
    empty.mkdir()
    captions = "[...document.querySelectorAll('.chart-box')].filter(one => one.checkVisibility()).map(one => "
    captions += "one.querySelector('figcaption').innerText)"
    browser.resize(1280)
    with serving(tmp_path, str(empty)) as server:
        browser.open(server.url)
        browser.wait("document.getElementById('runs-note').innerText.length > 0")
        assert browser.run(captions) == []
        write_task_run(empty / "first", {"perplexity": 9.0})
        browser.wait(f"({captions}).includes('perplexity')")
        browser.leave()
    write_task_run(models / "large", {"perplexity": 12.5}, score="min:perplexity")
    make_run(others / "lenet", 5, FINISHED)
    make_run(others / "large-2", 5, FINISHED)
    with serving(tmp_path, str(models), str(others)) as server:
        browser.open(server.url)
        browser.wait(ROWS + ".length === 3")
        assert set(browser.run(NAMES_OF_ROWS)) == {"a/runs/large", "b/runs/lenet", "b/runs/large-2"}
        heads = browser.run("[...document.querySelectorAll('#runs thead th')].map(one => one.innerText)")
        assert "Perplexity" in heads and "Rows/s" in heads
        browser.wait(f"({captions}).includes('perplexity')")
        browser.open(f"{server.url}#run=large")
        browser.wait("document.getElementById('one-facts').innerText.includes('12.5')")
        facts = browser.run("document.getElementById('one-facts').innerText")
        assert "lm.py:Task" in facts and "digits" not in facts and "Images/s" not in facts
        browser.wait(f"({captions}).includes('perplexity')")
        assert "accuracy" not in browser.run(captions)
        browser.open(f"{server.url}#compare=lenet")
        browser.wait("document.querySelector('#overview-curves .legend').innerText.includes('b/runs/lenet')")
        browser.leave()
    assert browser.errors == []


def test_ranks_that_were_lost_and_joined(browser, tmp_path):
    """In the table of ranks, in a list, and as marks in the curves; hostile reasons are text."""
    folder = make_run(tmp_path / "runs" / "survives", 200, ranks=4)
    write_changes(folder, why=HOSTILE)
    ranks = RunningRanks(folder, 4)
    ranks.write()
    ranks.silent = frozenset([2])
    os.utime(folder / "heartbeats" / "rank-2.json", (time.time() - 60,) * 2)
    changes = "document.getElementById('changes').innerText"
    with serving(tmp_path) as server:
        browser.open(f"{server.url}#run=survives")
        with ranks:
            for width in (375, 1280):
                browser.resize(width)
                browser.wait("document.querySelectorAll('#changes li').length === 2")
                browser.wait("document.querySelectorAll('#ranks tr.gone').length === 1")
                browser.wait("document.querySelectorAll('#one-curves line.change.lost').length >= 2")
                check_layout(browser, width)
            assert "lost at step 120" in browser.run("document.querySelector('#ranks tr.gone').innerText")
            assert "1 rank lost" in browser.run("document.getElementById('changes-section').innerText")
            assert "rank 2 on node2 lost at step 120 (<img" in browser.run(changes)
            assert "3 / 4" in browser.run("document.getElementById('one-facts').innerText")
        write_changes(folder, back=True)
        ranks.silent = frozenset()
        with ranks:
            browser.wait(f"{changes}.includes('joined at step 140')")
            browser.wait("document.querySelectorAll('#ranks tr.gone').length === 0")
            browser.leave()
    assert browser.errors == []
