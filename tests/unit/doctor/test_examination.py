"""The doctor's command line, its quick checks, its documentation, and merged reports."""

from __future__ import annotations

import json

import pytest
from support.jobs import ROOT
from support.jobs import run as run_command

from hvdtrain.cli.doctor import main
from hvdtrain.doctor.examination import CHECKS, merge
from hvdtrain.doctor.quick import QUICK
from hvdtrain.system.text import format_ranks


def test_options(tmp_path, capsys):
    def said(*options):
        with pytest.raises(SystemExit) as ended:
            main([*options])
        return ended.value.code, "".join(capsys.readouterr())

    for options in (["--only", "nonsense"], ["--ranks", "0"], ["--nonsense"]):
        assert said(*options)[0] == 2
    status, text = said("--output", "/proc/nothing/file", "--only", "limits")
    assert status == 2 and "nothing can be written there" in text
    status, text = said("--json", "--only", "limits")
    assert status == 0 and json.loads(text)["findings"][0]["check"] == "limits"
    status, text = said("--help")
    assert status == 0 and all(check.name in text for check in CHECKS) and "horovod-size" in text


def test_quick_checks_start_no_process():
    """It needs a new process: an audit hook stays, and NumPy is not imported yet."""
    code = (
        "import sys\nfrom hvdtrain.doctor import examine_host\n"
        "forbidden = {'subprocess.Popen', 'os.fork', 'os.exec', 'os.posix_spawn', 'os.system', 'socket.getaddrinfo'}\n"
        "def audit(event, _):\n    assert event not in forbidden, event\n"
        "sys.addaudithook(audit)\nrows = examine_host()\n"
        "print(len(rows), 'crashed' in str(rows), 'numpy' in sys.modules)"
    )
    status, text = run_command(["python", "-c", code], ROOT)
    assert status == 0, text
    count, crashed, numpy = text.split()
    assert int(count) >= len(QUICK) and (crashed, numpy) == ("False", "False")


def test_docs_name_existing_checks():
    page = (ROOT / "docs" / "doctor.md").read_text()
    problems = page.partition("| symptom |")[2].partition("\n\n")[0].splitlines()[2:]
    named = {name for line in problems for name in line.split("|")[3].strip().split(", ")}
    assert len(problems) > 15
    assert named <= {check.name for check in CHECKS}
    assert ", ".join(check.name for check in QUICK) in page.replace("\n", " ")


def test_merge_joins_equal_findings():
    row = {"check": "c", "topic": "machine", "status": "ok", "text": "t", "remedy": ""}
    other = {**row, "text": "u"}
    reports = [{"rank": rank, "host": f"h{rank}", "findings": [row if rank < 2 else other]} for rank in range(3)]
    first, second = merge(reports)
    assert first["ranks"] == [0, 1] and first["hosts"] == ["h0", "h1"] and not first["everywhere"]
    assert second["ranks"] == [2]
    assert format_ranks([0, 1, 2, 3, 7]) == "0-3, 7"
