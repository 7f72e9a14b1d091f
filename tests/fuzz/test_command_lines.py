"""Options of training and of the launcher, and the hostfile."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator

from hypothesis import example, given
from hypothesis import strategies as st
from support.options import parse

from fuzz.inputs import NUMBER_TEXTS, mutated, text_like
from fuzz.properties import FUZZ, folder_of, rejects_cleanly
from hvdtrain.cli import launch
from hvdtrain.cli.sweep_settings import parse_settings
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.config.sources import CommandLine
from hvdtrain.jobs import hosts, job, sbatch
from hvdtrain.measure.sweep import trials
from hvdtrain.measure.sweep.trials import SweepOptions

VALUES = ["digits", "book", "torch", "0", "1", "-1", "nan", "inf", "1e999", "True", "None", "x", "", "é", "\udc80",
          "\0", "--", "/"]  # fmt: skip
TRAINING_OPTIONS = [
    f"--{name.replace('_', '-')}" for options in (vars(Config()), vars(RuntimeOptions())) for name in options
] + ["--config", "--print-config"]


@FUZZ
@given(
    st.lists(
        st.sampled_from(TRAINING_OPTIONS)
        | st.sampled_from(VALUES)
        | st.sampled_from(NUMBER_TEXTS)
        | st.builds("{}={}".format, st.sampled_from(TRAINING_OPTIONS), st.sampled_from([*VALUES, *NUMBER_TEXTS]))
        | st.text(max_size=4),
        max_size=5,
    )
)
@example(["--resume=" + "9" * 300])
@example(["--recipe=--"])
def test_training_options(argv: list[str]) -> None:
    with rejects_cleanly(), contextlib.suppress(SystemExit), silence():
        parse(argv, "train", "torch")


@contextlib.contextmanager
def silence() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


TOML = (
    b'recipe = "book"\nlr = 0.1\nbatch_size = 32\ngroups = "auto"\ncompile = true\nruns = "~/runs"\n',
    b"# a comment\nnesterov = false\nmax-steps = 1_000\nwarmup-epochs = 1e-1\nname = 'a'\n",
    b'resume = "runs/a"\nframework = "mxnet"\nstrategy = """ddp"""\n',
)
TOML_PIECES = (b"1979-05-27", b"07:32:00", b"[a]\n", b"[[a]]\n", b"{a = 1}", b"a.b = 1\n", b"[" * 2000, b"9" * 5000,
               b"1e999", b"nan", b"-inf", b"0x_", b"0xff", b'"\\u0000"', b'"\\ud800"', b"\xef\xbb\xbf", b"\r\n", b'"""',
               b"lr = 1\n", b"None", b"'--'", b"''")  # fmt: skip


@FUZZ
@given(mutated(TOML, TOML_PIECES))
@example(b"lr = 1" + b"0" * 400)
@example(b"lr" + b".a" * 16_000 + b" = 1")
@example(b"name = '\xed\xa0\x80'")
def test_option_file(content: bytes) -> None:
    with folder_of(options=content) as folder, rejects_cleanly(), contextlib.suppress(SystemExit), silence():
        CommandLine.read(["--config", str(folder / "options")], "train", None).to_toml()


@FUZZ
@given(
    st.lists(
        text_like(("lr=0.1,0.2", "nesterov=true", "groups=auto,2", "data=a,b", "arg.x=[1,2],'a,b'"), "=,-_.é\x1b[]'"),
        max_size=3,
    )
)
def test_sweep_settings(texts: list[str]) -> None:
    with rejects_cleanly():
        settings = parse_settings(SweepOptions(set=tuple(texts)), [])
        if math.prod(map(len, settings.values())) < 100:
            planned = trials.plan(settings, 1)
            assert len({trial.name for trial in planned}) == len(planned)


LAUNCH_OPTIONS = ("--interface", "--env", "--output-dir", "--start-timeout", "-n", "-H", "--nodes",
                  "--mpi")  # fmt: skip
SBATCH_OPTIONS = ("--nodes", "--ranks-per-node", "--signal-before", "--time",
                  "--gpus-per-node", "--partition", "--account", "--job-name", "--container", "--mpi", "--via",
                  "--array", "--sbatch",
                  *LAUNCH_OPTIONS)  # fmt: skip
ARGUMENTS = [*VALUES, *NUMBER_TEXTS, "node1:2,node2", "1:30", "A=b", "64G", "1-2:3:4", "srun", "mpirun", "#SBATCH",
             "$(x)", "a\nb"]  # fmt: skip


def options_with_values(names: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    pairs = st.tuples(st.sampled_from(names), st.sampled_from(ARGUMENTS) | st.text(max_size=3))
    return st.lists(pairs, max_size=4).map(lambda found: [f"{name}={value}" for name, value in found])


@FUZZ
@given(options_with_values(SBATCH_OPTIONS), st.lists(st.sampled_from(ARGUMENTS), min_size=1, max_size=3))
@example([], ["\udc80"])
def test_sbatch_options(options: list[str], program: list[str]) -> None:
    with rejects_cleanly(), contextlib.suppress(SystemExit), silence():
        sbatch.run(launch.parse(["sbatch", "--nodes", "2", "--ranks-per-node", "2", *options, "--", *program]))


def batch_script(*options: str) -> tuple[list[str], list[str]]:
    """The #SBATCH lines of a script, and what follows them."""
    given = launch.parse(["sbatch", "--nodes", "1", "--ranks-per-node", "1", *options, "--", "true"])
    header, separator, rest = sbatch.script(given).partition("\nset -uo pipefail\n")
    lines = header.split("\n")
    assert separator and all(line.startswith("#") for line in lines if line)
    return [line for line in lines if line.startswith("#SBATCH")], rest.split("\n")


@FUZZ
@given(
    st.sampled_from(["--sbatch", "--array", "--job-name"]),
    text_like(("--qos=high", "--comment='a b'", "-q high", "0-3", "name"),
              ("\n#SBATCH --nodes=9", "\n", "\r", "\x85", "\u2028", "\0", "#", " ", "'", '"', "\\", "$(x)", "`x`", "--",
               "%", ";", "\n\nrm -rf x\n", "=", "\x1b")),
)  # fmt: skip
@example("--sbatch", "--comment='a\n#SBATCH --nodes=9'")
@example("--sbatch", "hetjob")
@example("--job-name", "a\n#SBATCH --nodes=9")
@example("--array", "0-3\n#SBATCH --nodes=9")
def test_no_option_of_a_batch_script_adds_another_line(name: str, value: str) -> None:
    with rejects_cleanly(), contextlib.suppress(SystemExit), silence():
        plain, rest = batch_script(*(["--array", "1"] if name == "--array" and value else []))
        lines, same = batch_script(f"{name}={value}")
        assert (len(lines), same) == (len(plain) + (name == "--sbatch"), rest)


@FUZZ
@given(
    st.sampled_from(["local", "horovodrun", "mpirun", "srun"]),
    options_with_values(LAUNCH_OPTIONS),
    st.lists(st.sampled_from(ARGUMENTS)),
)
def test_launch_options(launcher: str, options: list[str], program: list[str]) -> None:
    given = [launcher, "-n", "2", "--dry-run", *options, "--", *program]
    with rejects_cleanly(), contextlib.suppress(SystemExit), silence():
        asked = launch.describe(launch.parse(given))
        if asked.ranks < 100:  # local prints one line per rank
            job.check_job(asked)
            launch.build(asked, {})


@FUZZ
@given(text_like(("NAME", "NAME=value", "A=b=c"), "=_ \0"))
def test_variables(variable: str) -> None:
    with rejects_cleanly():
        launch.requested_variables([variable], {"NAME": "value"})


@FUZZ
@given(
    text_like(
        ("node1:4,node2:4", "a", "10.0.0.1:2", "node1 slots=4\nnode2 slots=2 max_slots=4\n# a comment\n"),
        (":", ",", ",n1:2", "n-", "_", ".", "slots", "=", "#", "\nn slots=1"),
    )
)
@example(",".join(f"{i:x}" for i in range(1 << 14)))
@example("\n".join(f"n{i}" for i in range(100_000)))
def test_hosts(text: str) -> None:
    """On the command line and in a file."""
    with rejects_cleanly():
        found = hosts.parse_hosts(text)
        assert found and all(host.slots > 0 for host in found)
    with folder_of(hosts=text.encode("utf-8", "surrogateescape")) as folder, rejects_cleanly():
        assert all(host.slots > 0 for host in hosts.read_hostfile(folder / "hosts"))
