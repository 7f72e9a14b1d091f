"""Fixtures for all tests."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support import environment, parts, stack
from support.jobs import ending_started, real_data_folder
from xdist.scheduler import LoadScopeScheduling

from hvdtrain.system import arithmetic, start_folder

SHOWN = 10
"""Of the slowest files, when all tests have run."""
seconds: Counter[str] = Counter()
"""That the tests of each file took."""


# How long an example takes says more about the other programs of this machine than about the code.
settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")


class ByScope(LoadScopeScheduling):
    """Tests that share fixtures run in the same worker."""

    def _split_scope(self, nodeid: str) -> str:
        return parts.scope_of(nodeid)


def pytest_addoption(parser):
    parser.addoption("--part", type=parts.parse, help="run only this part of the tests, such as 1/4")
    parser.addoption("--framework", choices=stack.FRAMEWORKS, help="leave out the tests of other frameworks alone")
    parser.addoption("--avx2", action="store_true", help="limit all libraries to AVX2")


def pytest_configure(config):
    """Before any file of tests imports a framework, which sets variables."""
    if sys.flags.optimize and not getattr(config.option, "numprocesses", None):  # workers have no such setting
        raise pytest.UsageError("Python removes the assertions of tests/support: unset PYTHONOPTIMIZE, leave out -O")
    if config.getoption("avx2"):
        if not arithmetic.processor().flags >= arithmetic.AVX512:
            pytest.exit("this processor has no AVX-512, so all tests run without it anyway", returncode=0)
        os.environ.update(arithmetic.at_most("avx2"))
    if home := environment.begin():
        config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))


def pytest_report_header(config):
    if config.getoption("avx2"):
        return " ".join(["limited to AVX2:", *(f"{name}={os.environ[name]}" for name in arithmetic.AT_MOST["avx2"])])


def pytest_runtest_logreport(report):
    seconds[report.nodeid.partition("::")[0]] += report.duration


def pytest_terminal_summary(terminalreporter):
    if len(seconds) < SHOWN:  # a few files were asked for
        return
    folders = Counter()
    for file, duration in seconds.items():
        folders["/".join(file.split("/")[:2])] += duration
    titles = {"slowest files": seconds.most_common(SHOWN), "folders, whose budgets are in CONTRIBUTING.md": folders}
    for title, durations in titles.items():
        terminalreporter.section(title)
        for name, duration in dict(durations).items():
            terminalreporter.line(f"{duration:6.1f} s  {name}")
    terminalreporter.line(f"all {len(seconds)} files: {sum(seconds.values()) / 60:.1f} minutes of tests")


def pytest_xdist_make_scheduler(config, log):
    return ByScope(config, log)


def pytest_pycollect_makemodule(module_path, parent):
    return stack.TestModule.from_parent(parent, path=module_path)


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_collection_modifyitems(config, items):
    stack.skip_what_is_missing(items)
    yield  # -m and -k leave some out
    if framework := config.getoption("framework"):
        stack.select(config, items, framework)
    if part := config.getoption("part"):
        parts.select(config, items, *part)


@pytest.fixture(autouse=True, scope="session")
def interrupts_reach_jobs():
    """Let jobs get Ctrl-C and SIGQUIT in the background, where a shell ignores them, and SIGHUP under nohup."""
    default = dict.fromkeys((signal.SIGQUIT, signal.SIGHUP), signal.SIG_DFL)
    for number, handler in {signal.SIGINT: signal.default_int_handler, **default}.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


start_folder.START = ""  # trainings in this process take paths from the present folder, as in a notebook

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)


@pytest.fixture(scope="session")
def handlers_at_first(interrupts_reach_jobs):
    return {number: signal.getsignal(number) for number in SIGNALS}


@pytest.fixture(autouse=True)
def same_signal_handlers(handlers_at_first):
    """What a training in this process does with signals does not stay for other tests, and for what they start."""
    for number, handler in handlers_at_first.items():
        signal.signal(number, handler)
    yield
    for number, handler in handlers_at_first.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def no_job_left_behind():
    """A test that fails ends the jobs that it has started."""
    with ending_started():
        yield


SET_BY_IMPORTS = {"TF2_BEHAVIOR", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "CRC32C_SW_MODE", "KERAS_BACKEND"}
"""By TensorFlow, PyTorch, tensorboardX and hvdtrain (that of Keras)."""


def changed_since(before: dict[str, str]) -> set[str]:
    """Names of environment variables; pytest itself changes one."""
    names = before.keys() | os.environ.keys()
    return {name for name in names if before.get(name) != os.environ.get(name)} - {"PYTEST_CURRENT_TEST"}


@pytest.fixture(autouse=True, scope="module")
def environment_of_a_file():
    """What a framework sets in a fixture of a file of tests does not stay for the other files."""
    before = dict(os.environ)
    yield
    for name in changed_since(before) - SET_BY_IMPORTS:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]


@pytest.fixture(autouse=True)
def unchanged_environment():
    """Fail a test that leaves an environment variable behind, which would affect later tests."""
    before = dict(os.environ)
    yield
    changed = changed_since(before) - SET_BY_IMPORTS
    assert not changed, f"the test changed the environment: {changed}"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the published data sets; skips the test if there is none."""
    folder = real_data_folder()
    if not folder:
        pytest.skip("needs HVDTRAIN_DATA, a folder that holds fashion-mnist/")
    return folder
