"""The page in Chromium while a real job trains. It needs processes: ranks are stopped and killed."""

import os
import signal

import pytest
from support.browser import NAMES, Browser, find_browser
from support.jobs import finish, launcher, pids_of_ranks, start
from support.stack import FASTEST
from support.web import serving

STATE = "document.getElementById('one-state').innerText"


def test_a_job_appears_waits_for_a_stopped_rank_and_fails_with_a_killed_one(tmp_path):
    """The page names the rank in both cases, and is open all the time."""
    if not find_browser():
        pytest.skip(f"needs a browser: none of {', '.join(NAMES)} is on PATH (Debian: apt-get install chromium)")
    (tmp_path / "runs").mkdir()
    training = ["python", "-m", f"hvdtrain.{FASTEST}_lenet", "--name", "job", "--epochs", "1000", "--log-every", "2"]
    with serving(tmp_path) as server, Browser(tmp_path / "profile") as browser:
        browser.resize(375)
        browser.open(server.url)
        browser.wait("document.getElementById('runs-note').innerText === 'No run there yet.'")
        job = start([*launcher("local", 2), *training], tmp_path)
        browser.wait("document.querySelector('#runs tbody th')?.innerText === 'job'", 90)
        browser.run("document.querySelector('#runs tbody a').click()")
        browser.wait(f"{STATE}.includes('training')", 90)
        browser.wait("document.querySelector('#one-curves path.line')")
        assert browser.run("document.querySelectorAll('#ranks tbody tr').length") == 2
        pids = pids_of_ranks(tmp_path / "runs" / "job", 2)
        os.kill(pids[1], signal.SIGSTOP)
        browser.wait(f"{STATE}.includes('waiting') && {STATE}.includes('no heartbeat of rank 1')")
        os.kill(pids[1], signal.SIGCONT)
        browser.wait(f"{STATE}.includes('training')")
        os.kill(pids[1], signal.SIGKILL)
        browser.wait(f"{STATE}.includes('failed') && {STATE}.includes('rank 1 on ')")
        assert "was killed by SIGKILL" in browser.run(STATE)
        finish(job)
        assert browser.run("document.documentElement.scrollWidth") <= 375
        assert browser.errors == []
