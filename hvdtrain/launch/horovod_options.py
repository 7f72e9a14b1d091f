"""Horovod's own settings: as options of ours, as horovodrun's --config-file, and as the variables that they become.

The variables work under every launcher; horovodrun itself only turns its options into the same ones.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.errors import UserError


class Setting(NamedTuple):
    """One row: section and key of the config file, the variable, and what it takes."""

    section: str
    key: str
    variable: str
    kind: str
    """switch, off (a switch that is set by what is false), whole, number, megabytes, text or level."""
    about: str

    @property
    def option(self) -> str:
        prefix = {"autotune": "autotune_", "timeline": "timeline_", "stall_check": "stall_check_", "logging": "log_"}
        own = {"autotune_enabled": "autotune", "stall_check_enabled": "no_stall_check", "timeline_filename": "timeline"}
        name = prefix.get(self.section, "") + self.key
        return f"--{own.get(name, name).replace('_', '-')}"

    @property
    def dest(self) -> str:
        return self.variable.lower()


SETTINGS = [
    Setting(*row)
    for row in (
        ("params", "fusion_threshold_mb", "HOROVOD_FUSION_THRESHOLD", "megabytes", "gradients sent together, in MB"),
        ("params", "cycle_time_ms", "HOROVOD_CYCLE_TIME", "number", "how often Horovod looks for work"),
        ("params", "cache_capacity", "HOROVOD_CACHE_CAPACITY", "whole", "remembered answers; 0: none"),
        ("params", "hierarchical_allreduce", "HOROVOD_HIERARCHICAL_ALLREDUCE", "switch", "within hosts first (NCCL)"),
        ("params", "hierarchical_allgather", "HOROVOD_HIERARCHICAL_ALLGATHER", "switch", "within hosts first (MPI)"),
        ("params", "torus_allreduce", "HOROVOD_TORUS_ALLREDUCE", "switch", "within and across hosts at once (NCCL)"),
        ("autotune", "enabled", "HOROVOD_AUTOTUNE", "switch", "have Horovod look for the best settings"),
        ("autotune", "log_file", "HOROVOD_AUTOTUNE_LOG", "text", "what it tried"),
        ("autotune", "warmup_samples", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "whole", ""),
        ("autotune", "steps_per_sample", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "whole", ""),
        ("autotune", "bayes_opt_max_samples", "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "whole", ""),
        ("autotune", "gaussian_process_noise", "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "number", ""),
        ("timeline", "filename", "HOROVOD_TIMELINE", "text", "what each collective waited for, for chrome://tracing"),
        ("timeline", "mark_cycles", "HOROVOD_TIMELINE_MARK_CYCLES", "switch", ""),
        ("stall_check", "enabled", "HOROVOD_STALL_CHECK_DISABLE", "off", "no warnings of ranks that do not come"),
        ("stall_check", "warning_time_seconds", "HOROVOD_STALL_CHECK_TIME_SECONDS", "whole", ""),
        ("stall_check", "shutdown_time_seconds", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "whole", ""),
        ("library_options", "mpi_threads_disable", "HOROVOD_MPI_THREADS_DISABLE", "switch", ""),
        ("library_options", "num_nccl_streams", "HOROVOD_NUM_NCCL_STREAMS", "whole", ""),
        ("library_options", "thread_affinity", "HOROVOD_THREAD_AFFINITY", "whole", "core of Horovod's thread"),
        (
            "library_options",
            "gloo_timeout_seconds",
            "HOROVOD_GLOO_TIMEOUT_SECONDS",
            "whole",
            "30 where it is not given",
        ),
        ("logging", "level", "HOROVOD_LOG_LEVEL", "level", "trace, debug, info, warning, error or fatal"),
    )
]
NOTHING = ("", "~", "null")
SWITCH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
"""What YAML calls true and false."""
LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options under the names that horovodrun gives them."""
    group = parser.add_argument_group("Horovod's own settings, as horovodrun has them")
    group.add_argument("--config-file", type=Path, metavar="FILE", help="horovodrun's YAML file of these settings")
    for one in SETTINGS:
        if one.kind in ("switch", "off"):
            group.add_argument(
                one.option, dest=one.dest, action="store_const", const=one.kind == "switch", help=one.about
            )
        else:
            group.add_argument(one.option, dest=one.dest, metavar="N" if one.kind != "text" else "FILE", help=one.about)


def variables(options: argparse.Namespace) -> dict[str, str]:
    """HOROVOD_* of the file and, before it, of the options.

    Raises UserError where a value is none that Horovod takes.
    """
    file = _read(options.config_file) if options.config_file else {}
    found = {}
    for one in SETTINGS:
        given, where = getattr(options, one.dest), one.option
        if given is None:
            given, where = file.get((one.section, one.key)), f"{options.config_file}: {one.section}: {one.key}"
        if given is not None:
            found[one.variable] = _value(one, given, where)
    return found


def _value(one: Setting, given: Any, where: str) -> str:
    if one.kind in ("switch", "off"):
        if not isinstance(given, bool):
            raise UserError(f"{where} {given!r}: write true or false")
        return str(int(given == (one.kind == "switch")))
    if one.kind == "text":
        return str(given)
    if one.kind == "level":
        if str(given).lower() not in LEVELS:
            raise UserError(f"{where} {given!r}: choose one of {', '.join(LEVELS)}")
        return str(given).lower()
    try:
        number = float(given)
        if isinstance(given, bool) or not 0 <= number < 1e12 or (one.kind == "whole" and number != int(number)):
            raise ValueError
    except (ValueError, TypeError):
        raise UserError(f"{where} {given!r}: give a {'whole ' * (one.kind == 'whole')}number of 0 or more") from None
    if one.kind == "number":
        return f"{number:g}"
    return str(int(number * (1 << 20 if one.kind == "megabytes" else 1)))


def _read(path: Path) -> dict[tuple[str, str], Any]:
    import yaml  # here, as most jobs have no such file

    try:
        # Text, lists and sections alone: nothing is made of tags, dates and merged sections.
        content = yaml.load(path.read_text(), yaml.BaseLoader) or {}
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"--config-file {path}: it cannot be read ({reason}); see horovodrun's manual") from None
    known = {(one.section, one.key) for one in SETTINGS}
    found = {}
    if not isinstance(content, dict) or not all(isinstance(part, dict) for part in content.values()):
        raise UserError(f"--config-file {path}: it is no YAML of sections such as params: and autotune:")
    for section, values in content.items():
        for key, value in values.items():
            if (section, key) not in known:
                raise UserError(f"--config-file {path}: {section}: {key} is no setting that is known; leave it out")
            if not isinstance(value, str):
                raise UserError(f"--config-file {path}: {section}: {key} is a list or a section; give it one value")
            if value.lower() not in NOTHING:
                found[section, key] = SWITCH.get(value.lower(), value)
    return found
