"""Options of training and of the launcher, and the files that they name: hosts and Horovod's settings."""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import shlex
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
from hvdtrain.jobs import horovod_options, hosts, job
from hvdtrain.jobs.slurm import sbatch
from hvdtrain.measure.sweep import trials
from hvdtrain.measure.sweep.options import SweepOptions

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
        text_like(("lr=0.1,0.2", "nesterov=true", "groups=auto,2", "data=a,b", "batch-size=1"), "=,-_.é\x1b"),
        max_size=3,
    )
)
def test_sweep_settings(texts: list[str]) -> None:
    with rejects_cleanly():
        settings = parse_settings(SweepOptions(set=tuple(texts)), [])
        if math.prod(map(len, settings.values())) < 100:
            planned = trials.plan(settings, 1)
            assert len({trial.name for trial in planned}) == len(planned)


LAUNCH_OPTIONS = ("--interface", "--env", "--output-dir", "--time-limit", "--start-timeout", "-n", "-H", "--nodes",
                  "--mpi")  # fmt: skip
HOROVOD_OPTIONS = [one.option for one in horovod_options.SETTINGS]
SBATCH_OPTIONS = ("--nodes", "--ranks-per-node", "--cpus-per-rank", "--signal-before", "--time", "--mem",
                  "--gpus-per-node", "--partition", "--account", "--job-name", "--container", "--mpi", "--via",
                  "--array", "--sbatch", "--mail-user", "--mail-type", "--ssh-port", "--ssh-key",
                  *LAUNCH_OPTIONS)  # fmt: skip
ARGUMENTS = [*VALUES, *NUMBER_TEXTS, "node1:2,node2", "1:30", "A=b", "64G", "1-2:3:4", "srun", "mpirun", "#SBATCH",
             "$(x)", "a\nb"]  # fmt: skip


def options_with_values(names: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    pairs = st.tuples(st.sampled_from([*names, *HOROVOD_OPTIONS]), st.sampled_from(ARGUMENTS) | st.text(max_size=3))
    return st.lists(pairs, max_size=4).map(lambda found: [f"{name}={value}" for name, value in found])


@FUZZ
@given(options_with_values(SBATCH_OPTIONS), st.lists(st.sampled_from(ARGUMENTS), min_size=1, max_size=3))
@example([], ["\udc80"])
def test_sbatch_options(options: list[str], program: list[str]) -> None:
    with folder_of() as folder, rejects_cleanly(), contextlib.suppress(SystemExit), silence():
        given = ["sbatch", "--nodes", "2", "--ranks-per-node", "2", *options, "--script", str(folder / "script")]
        sbatch.run(launch.parse([*given, "--", *program]))


IN_LINES = ("--sbatch", "--array", "--mail-user", "--mail-type", "--job-name")
LINES_ADDED = {"--sbatch": 1, "--array": 0, "--mail-user": 1, "--mail-type": 1, "--job-name": 0}


def batch_script(*options: str) -> tuple[list[str], list[str]]:
    """The #SBATCH lines of a script, and what follows them."""
    given = launch.parse(["sbatch", "--nodes", "1", "--ranks-per-node", "1", *options, "--", "true"])
    header, separator, rest = sbatch.script(given).partition("\nset -uo pipefail\n")
    lines = header.split("\n")
    assert separator and all(line.startswith("#") for line in lines if line)
    return [line for line in lines if line.startswith("#SBATCH")], rest.split("\n")


@FUZZ
@given(
    st.sampled_from(IN_LINES),
    text_like(("--qos=high", "--comment='a b'", "-q high", "0-3", "ada@example.org", "END", "name"),
              ("\n#SBATCH --nodes=9", "\n", "\r", "\x85", "\u2028", "\0", "#", " ", "'", '"', "\\", "$(x)", "`x`", "--",
               "%", ";", "\n\nrm -rf x\n", "=", "\x1b")),
)  # fmt: skip
@example("--sbatch", "--comment='a\n#SBATCH --nodes=9'")
@example("--sbatch", "--comment=a --nodes=9")
@example("--sbatch", "--comment='a # b'")
@example("--sbatch", "hetjob")
@example("--job-name", "a\n#SBATCH --nodes=9")
@example("--mail-user", "a #SBATCH --nodes=9")
@example("--array", "0-3\n#SBATCH --nodes=9")
def test_no_option_of_a_batch_script_adds_another_line(name: str, value: str) -> None:
    with rejects_cleanly(), contextlib.suppress(SystemExit), silence():
        plain, rest = batch_script(*(["--array", "1"] if name == "--array" and value else []))
        lines, same = batch_script(f"{name}={value}")
        assert (len(lines), same) == (len(plain) + (LINES_ADDED[name] if value else 0), rest)
        added = next((line for line in lines if line not in plain), "")
        # As sbatch reads a line: words and quotes as in a shell, and # begins a comment.
        words = shlex.split(added.removeprefix("#SBATCH"), comments=True)
        assert words == shlex.split(added.removeprefix("#SBATCH"))
        assert all(word.startswith("-") for word in words) or (len(words) == 2 and words[0].startswith("-"))
        assert not added or not any(word.startswith("--nodes") for word in words)


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
            launch.build(launcher, asked, {})


@FUZZ
@given(text_like(("90", "1:30", "1:00:00", "0.5"), ":.0١"), text_like(("NAME", "NAME=value", "A=b=c"), "=_ \0"))
def test_times_and_variables(time: str, variable: str) -> None:
    with rejects_cleanly():
        launch.seconds(time)
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


YAML = (
    b"params:\n  fusion_threshold_mb: 32\n  cycle_time_ms: 1.5\nautotune:\n  enabled: true\n  log_file: a.csv\n",
    b"stall_check:\n  enabled: no\n  warning_time_seconds: 60\nlogging:\n  level: INFO\ntimeline: {filename: t.json}\n",
    b"{}",
)
YAML_PIECES = (b"2001-99-99", b"!!int x", b"!!timestamp x", b"!!binary x", b"0x_", b"0b", b"&a ", b"*a", b"<<: *a",
               b"? ", b"[" * 2000, b"9" * 5000, b"1:" + b"59:" * 3000 + b"1", b"1e999", b".nan", b"{a: [b]}", b"- ",
               b"\n---\n", b"%YAML 9.9\n", b"\t", b"null", b"=", b": ")  # fmt: skip


def laughs(first: str, next_one: str) -> bytes:
    """A billion-laughs document: each anchor expands to twice the one before it."""
    parts = [f"&a0 {first}", *(f"&a{i} {next_one.format(i - 1)}" for i in range(1, 40))]
    return f"timeline: {{filename: [{', '.join(parts)}]}}".encode()


@FUZZ
@given(mutated(YAML, YAML_PIECES))
@example(laughs("[x, x]", "[*a{0}, *a{0}]"))
@example(laughs("{x: y}", "{{<<: [*a{0}, *a{0}]}}"))
@example(b"params: {cycle_time_ms: 2001-99-99}")
@example(b"params: {cycle_time_ms: " + b"9" * 400 + b"}")
def test_config_file(content: bytes) -> None:
    none = {one.dest: None for one in horovod_options.SETTINGS}
    with folder_of(settings=content) as folder, rejects_cleanly():
        found = horovod_options.variables(argparse.Namespace(config_file=folder / "settings", **none))
        assert all(isinstance(value, str) and len(value) < 1 << 16 for value in found.values())
