"""Horovod's own settings: as options, in horovodrun's --config-file, and as the environment variables they set.

The variables work with every launcher; horovodrun itself only turns its options into the same ones.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.errors import UserError


class HorovodSetting(NamedTuple):
    """One setting: section and key in the config file, the variable, and what it accepts."""

    section: str
    key: str
    variable: str
    kind: str
    """switch, off (a switch whose variable is set when it is false), integer, number, megabytes, text or level."""
    help: str

    @property
    def option(self) -> str:
        prefix = {"autotune": "autotune_", "timeline": "timeline_", "stall_check": "stall_check_", "logging": "log_"}
        names = {
            "autotune_enabled": "autotune",
            "stall_check_enabled": "no_stall_check",
            "timeline_filename": "timeline",
        }
        name = prefix.get(self.section, "") + self.key
        return f"--{names.get(name, name).replace('_', '-')}"

    @property
    def dest(self) -> str:
        return self.variable.lower()


# fmt: off
SETTINGS = [
    HorovodSetting("params", "fusion_threshold_mb", "HOROVOD_FUSION_THRESHOLD", "megabytes",
                   "fuse gradients up to this size, in MB"),
    HorovodSetting("params", "cycle_time_ms", "HOROVOD_CYCLE_TIME", "number",
                   "time between two cycles of Horovod's background thread, in ms"),
    HorovodSetting("params", "cache_capacity", "HOROVOD_CACHE_CAPACITY", "integer",
                   "size of the response cache; 0: off"),
    HorovodSetting("params", "hierarchical_allreduce", "HOROVOD_HIERARCHICAL_ALLREDUCE", "switch",
                   "reduce within hosts first (NCCL)"),
    HorovodSetting("params", "hierarchical_allgather", "HOROVOD_HIERARCHICAL_ALLGATHER", "switch",
                   "gather within hosts first (MPI)"),
    HorovodSetting("params", "torus_allreduce", "HOROVOD_TORUS_ALLREDUCE", "switch",
                   "reduce within and across hosts at once (NCCL)"),
    HorovodSetting("autotune", "enabled", "HOROVOD_AUTOTUNE", "switch",
                   "have Horovod search for the best settings"),
    HorovodSetting("autotune", "log_file", "HOROVOD_AUTOTUNE_LOG", "text",
                   "log of the settings that it tried"),
    HorovodSetting("autotune", "warmup_samples", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "integer",
                   "samples to discard at the start"),
    HorovodSetting("autotune", "steps_per_sample", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "integer",
                   "steps for each sample"),
    HorovodSetting("autotune", "bayes_opt_max_samples", "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "integer",
                   "maximum number of samples"),
    HorovodSetting("autotune", "gaussian_process_noise", "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "number",
                   "noise of the Gaussian process, 0 to 1"),
    HorovodSetting("timeline", "filename", "HOROVOD_TIMELINE", "text",
                   "record when each collective ran, for chrome://tracing"),
    HorovodSetting("timeline", "mark_cycles", "HOROVOD_TIMELINE_MARK_CYCLES", "switch",
                   "mark the cycles of the background thread"),
    HorovodSetting("stall_check", "enabled", "HOROVOD_STALL_CHECK_DISABLE", "off",
                   "no warnings about ranks that stall a collective"),
    HorovodSetting("stall_check", "warning_time_seconds", "HOROVOD_STALL_CHECK_TIME_SECONDS", "integer",
                   "seconds until a warning (Horovod's default: 60)"),
    HorovodSetting("stall_check", "shutdown_time_seconds", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "integer",
                   "seconds until the job is ended; 0: never"),
    HorovodSetting("library_options", "mpi_threads_disable", "HOROVOD_MPI_THREADS_DISABLE", "switch",
                   "do not use MPI's multi-threading"),
    HorovodSetting("library_options", "num_nccl_streams", "HOROVOD_NUM_NCCL_STREAMS", "integer",
                   "number of NCCL streams"),
    HorovodSetting("library_options", "thread_affinity", "HOROVOD_THREAD_AFFINITY", "integer",
                   "core of Horovod's background thread"),
    HorovodSetting("library_options", "gloo_timeout_seconds", "HOROVOD_GLOO_TIMEOUT_SECONDS", "integer",
                   "default: 30"),
    HorovodSetting("logging", "level", "HOROVOD_LOG_LEVEL", "level",
                   "trace, debug, info, warning, error or fatal"),
]
# fmt: on
NULL = ("", "~", "null")
BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
"""Booleans of YAML 1.1."""
LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options with the names that horovodrun gives them."""
    group = parser.add_argument_group("Horovod's own settings, with the names of horovodrun")
    group.add_argument(
        "--config-file", type=Path, metavar="FILE", help="YAML file with these settings, in horovodrun's format"
    )
    for setting in SETTINGS:
        if setting.kind in ("switch", "off"):
            group.add_argument(
                setting.option,
                dest=setting.dest,
                action="store_const",
                const=setting.kind == "switch",
                help=setting.help,
            )
        else:
            group.add_argument(
                setting.option, dest=setting.dest, metavar="N" if setting.kind != "text" else "FILE", help=setting.help
            )


def variables(options: argparse.Namespace) -> dict[str, str]:
    """The HOROVOD_* variables set by the options and the config file; options have priority.

    Raises UserError if Horovod does not accept a value.
    """
    file = _read(options.config_file) if options.config_file else {}
    values = {}
    for setting in SETTINGS:
        given, where = getattr(options, setting.dest), setting.option
        if given is None:
            given, where = (
                file.get((setting.section, setting.key)),
                f"{options.config_file}: {setting.section}: {setting.key}",
            )
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
        raise UserError(
            f"--config-file {path} is not YAML with sections", "write sections such as params: and autotune:"
        )
    for section, values in content.items():
        for key, value in values.items():
            if (section, key) not in known:
                raise UserError(f"--config-file {path}: {section}: {key} is not a known setting", "remove it")
            if not isinstance(value, str):
                raise UserError(f"--config-file {path}: {section}: {key} is a list or a section", "give it one value")
            if value.lower() not in NULL:
                settings[section, key] = BOOLEANS.get(value.lower(), value)
    return settings
