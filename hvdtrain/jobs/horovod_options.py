"""Horovod's own settings: as options, in horovodrun's --config-file, and as the environment variables they set.

The variables work with every launcher; horovodrun itself only turns its options into the same ones.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.errors import UserError


class HorovodSetting(NamedTuple):
    """One setting, and what it accepts."""

    section: str
    key: str
    """Where it is in the config file."""
    name: str
    """The variable that it sets, without HOROVOD_."""
    kind: str
    """switch, off (a switch whose variable is set when it is false), integer, number, megabytes, text or level."""
    help: str

    @property
    def variable(self) -> str:
        return f"HOROVOD_{self.name}"

    @property
    def dest(self) -> str:
        return self.variable.lower()

    @property
    def option(self) -> str:
        prefix = {"autotune": "autotune_", "timeline": "timeline_", "stall_check": "stall_check_", "logging": "log_"}
        name = OPTION_NAMES.get((self.section, self.key)) or prefix.get(self.section, "") + self.key
        return f"--{name.replace('_', '-')}"


OPTION_NAMES = {
    ("autotune", "enabled"): "autotune",
    ("stall_check", "enabled"): "no_stall_check",
    ("timeline", "filename"): "timeline",
}
"""Options that horovodrun does not name after the key."""
SECTIONS = {
    "params": (
        ("fusion_threshold_mb", "FUSION_THRESHOLD", "megabytes", "fuse gradients up to this size, in MB"),
        ("cycle_time_ms", "CYCLE_TIME", "number", "time between two cycles of Horovod's background thread, in ms"),
        ("cache_capacity", "CACHE_CAPACITY", "integer", "size of the response cache; 0: off"),
        ("hierarchical_allreduce", "HIERARCHICAL_ALLREDUCE", "switch", "reduce within hosts first (NCCL)"),
        ("hierarchical_allgather", "HIERARCHICAL_ALLGATHER", "switch", "gather within hosts first (MPI)"),
        ("torus_allreduce", "TORUS_ALLREDUCE", "switch", "reduce within and across hosts at once (NCCL)"),
    ),
    "autotune": (
        ("enabled", "AUTOTUNE", "switch", "have Horovod search for the best settings"),
        ("log_file", "AUTOTUNE_LOG", "text", "log of the settings that it tried"),
        ("warmup_samples", "AUTOTUNE_WARMUP_SAMPLES", "integer", "samples to discard at the start"),
        ("steps_per_sample", "AUTOTUNE_STEPS_PER_SAMPLE", "integer", "steps for each sample"),
        ("bayes_opt_max_samples", "AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "integer", "maximum number of samples"),
        ("gaussian_process_noise", "AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "number", "Gaussian process noise, 0 to 1"),
    ),
    "timeline": (
        ("filename", "TIMELINE", "text", "record when each collective ran, for chrome://tracing"),
        ("mark_cycles", "TIMELINE_MARK_CYCLES", "switch", "mark the cycles of the background thread"),
    ),
    "stall_check": (
        ("enabled", "STALL_CHECK_DISABLE", "off", "no warnings about ranks that stall a collective"),
        ("warning_time_seconds", "STALL_CHECK_TIME_SECONDS", "integer", "seconds until a warning (default: 60)"),
        ("shutdown_time_seconds", "STALL_SHUTDOWN_TIME_SECONDS", "integer", "seconds until the job is ended; 0: never"),
    ),
    "library_options": (
        ("mpi_threads_disable", "MPI_THREADS_DISABLE", "switch", "do not use MPI's multi-threading"),
        ("num_nccl_streams", "NUM_NCCL_STREAMS", "integer", "number of NCCL streams"),
        ("thread_affinity", "THREAD_AFFINITY", "integer", "core of Horovod's background thread"),
        ("gloo_timeout_seconds", "GLOO_TIMEOUT_SECONDS", "integer", "default: 30"),
    ),
    "logging": (("level", "LOG_LEVEL", "level", "trace, debug, info, warning, error or fatal"),),
}
"""The settings of each section."""
SETTINGS = [HorovodSetting(section, *row) for section, rows in SECTIONS.items() for row in rows]
NULL = ("", "~", "null")
BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
"""Booleans of YAML 1.1."""
LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options with the names that horovodrun gives them."""
    add = parser.add_argument_group("Horovod's own settings, with the names of horovodrun").add_argument
    add("--config-file", type=Path, metavar="FILE", help="YAML file with these settings, in horovodrun's format")
    for setting in SETTINGS:
        if setting.kind in ("switch", "off"):
            const = setting.kind == "switch"
            add(setting.option, dest=setting.dest, action="store_const", const=const, help=setting.help)
        else:
            metavar = "FILE" if setting.kind == "text" else "N"
            add(setting.option, dest=setting.dest, metavar=metavar, help=setting.help)


def variables(options: argparse.Namespace) -> dict[str, str]:
    """The HOROVOD_* variables set by the options and the config file; options have priority.

    Raises UserError if Horovod does not accept a value.
    """
    file = _read(options.config_file) if options.config_file else {}
    values = {}
    for setting in SETTINGS:
        given, where = getattr(options, setting.dest), setting.option
        if given is None:
            given = file.get((setting.section, setting.key))
            where = f"{options.config_file}: {setting.section}: {setting.key}"
        if given is not None:
            values[setting.variable] = _value(setting, given, where)
    return values


def _value(setting: HorovodSetting, given: Any, where: str) -> str:
    if setting.kind in ("switch", "off"):
        if not isinstance(given, bool):
            raise UserError(f"{where} {given!r} is not a boolean", "write true or false")
        return str(int(given == (setting.kind == "switch")))
    if setting.kind == "text":
        return str(given)
    if setting.kind == "level":
        if str(given).lower() not in LEVELS:
            raise UserError(f"{where} {given!r} is not a log level", f"choose one of {', '.join(LEVELS)}")
        return str(given).lower()
    try:
        number = float(given)
        if isinstance(given, bool) or not 0 <= number < 1e12 or (setting.kind == "integer" and number != int(number)):
            raise ValueError
    except (ValueError, TypeError):
        kind = "an integer" if setting.kind == "integer" else "a number"
        raise UserError(f"{where} {given!r} is invalid", f"give {kind} of 0 or more") from None
    if setting.kind == "number":
        return f"{number:g}"
    return str(int(number * (1 << 20 if setting.kind == "megabytes" else 1)))


def _read(path: Path) -> dict[tuple[str, str], Any]:
    import yaml  # here, as most jobs have no such file

    try:
        # BaseLoader makes text, lists and sections only: tags, dates and merge keys have no effect.
        content = yaml.load(path.read_text(), yaml.BaseLoader) or {}
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"--config-file {path} cannot be read ({reason})", "see horovodrun's manual") from None
    known = {(setting.section, setting.key) for setting in SETTINGS}
    settings = {}
    if not isinstance(content, dict) or not all(isinstance(part, dict) for part in content.values()):
        reason = f"--config-file {path} is not YAML with sections"
        raise UserError(reason, "write sections such as params: and autotune:")
    for section, values in content.items():
        for key, value in values.items():
            if (section, key) not in known:
                raise UserError(f"--config-file {path}: {section}: {key} is not a known setting", "remove it")
            if not isinstance(value, str):
                raise UserError(f"--config-file {path}: {section}: {key} is a list or a section", "give it one value")
            if value.lower() not in NULL:
                settings[section, key] = BOOLEANS.get(value.lower(), value)
    return settings
