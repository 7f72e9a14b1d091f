"""torch._dynamo is imported late. In processes of their own, as the tests' process may have imported it."""

import json
import subprocess
import sys

import pytest
from support.dynamo_uses import USES
from support.jobs import ROOT

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.frameworks.torch import late_dynamo, strategies

PROGRAM = ROOT / "tests" / "support" / "dynamo_uses.py"


def uses(how):
    command = [sys.executable, PROGRAM, how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def test_each_first_use_gives_what_it_gives_in_pytorch_as_shipped():
    """Among them: a step, then torch.compile of a whole step; torch.compiler.disable, threads."""
    postponed = uses("postponed")
    assert postponed.keys() == USES.keys()
    assert postponed == uses("shipped")


@pytest.mark.parametrize("compiles", [False, True])
def test_a_run_that_compiles_imports_it_as_pytorch_does(monkeypatch, compiles):
    asked = []
    monkeypatch.setattr(late_dynamo, "postpone", lambda: asked.append(True))
    strategies.TorchStrategy(Config(framework="torch", strategy="single", compile=compiles), RuntimeOptions(), None)
    assert asked == [True] * (not compiles)


@pytest.mark.parametrize("module", late_dynamo.CALLERS)
def test_nothing_is_postponed_where_pytorch_has_changed(monkeypatch, module):
    monkeypatch.setattr(sys.modules[module], late_dynamo.CALLERS[module], None)
    monkeypatch.delattr(sys.modules[module], late_dynamo.CALLERS[module])
    monkeypatch.delitem(sys.modules, late_dynamo.NAME, raising=False)
    late_dynamo.postpone()
    assert late_dynamo.NAME not in sys.modules
