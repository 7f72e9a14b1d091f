"""The variables that decide how Horovod and TensorFlow meet and work."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from hvdtrain.doctor.checks.allreduce import controlled, over_gloo
from hvdtrain.doctor.findings import Finding, Setting, check, fail, ok, warn
from hvdtrain.errors import UserError
from hvdtrain.system import rank_info

# Read by Horovod 0.28.1, at run time or where it is built.
NAMES = """
ADASUM_MPI_CHUNK_SIZE AUTOTUNE AUTOTUNE_BAYES_OPT_MAX_SAMPLES AUTOTUNE_GAUSSIAN_PROCESS_NOISE AUTOTUNE_LOG
AUTOTUNE_STEPS_PER_SAMPLE AUTOTUNE_WARMUP_SAMPLES BATCH_D2D_MEMCOPIES BUILD_ARCH_FLAGS BUILD_CUDA_CC_LIST
CACHE_CAPACITY CCL_BGT_AFFINITY CCL_CACHE CCL_FIN_THREADS CMAKE CONTROLLER CPU_OPERATIONS CROSS_RANK CROSS_SIZE
CUDA_HOME CUDA_INCLUDE CUDA_LIB CYCLE_TIME DISABLE_GROUP_FUSION DYNAMIC_PROCESS_SETS ELASTIC ELASTIC_TIMEOUT
ENABLE_ASYNC_COMPLETION ENABLE_XLA_OPS FUSION_THRESHOLD GLOO_IFACE GLOO_RENDEZVOUS_ADDR GLOO_RENDEZVOUS_PORT
GLOO_TIMEOUT_SECONDS GPU GPU_ALLGATHER GPU_ALLREDUCE GPU_ALLTOALL GPU_BROADCAST GPU_OPERATIONS GPU_REDUCESCATTER
HIERARCHICAL_ALLGATHER HIERARCHICAL_ALLREDUCE HOSTNAME LOCAL_RANK LOCAL_SIZE LOG_HIDE_TIME LOG_LEVEL
MPI_THREADS_DISABLE NCCL_HOME NCCL_INCLUDE NCCL_LIB NCCL_LINK NUM_NCCL_STREAMS OPERATION_TIMEOUT RANK ROCM_HOME
SECRET_KEY SIZE SPARK_PYTHONPATH SPARK_START_TIMEOUT SPARK_USE_LOCAL_RANK_GPU_INDEX SPARK_WORK_DIR
STALL_CHECK_DISABLE STALL_CHECK_TIME_SECONDS STALL_SHUTDOWN_TIME_SECONDS START_TIMEOUT THREAD_AFFINITY TIMELINE
TIMELINE_MARK_CYCLES TORUS_ALLREDUCE WITHOUT_GLOO WITHOUT_MPI WITHOUT_MXNET WITHOUT_PYTORCH WITHOUT_TENSORFLOW
WITH_GLOO WITH_MPI WITH_MXNET WITH_PYTORCH WITH_TENSORFLOW
"""
HOROVOD_VARIABLES = frozenset(f"HOROVOD_{name}" for name in NAMES.split())
CHOICES = {"HOROVOD_CONTROLLER": ("gloo", "mpi"), "HOROVOD_CPU_OPERATIONS": ("gloo", "mpi", "ccl")}
NUMBERS = (
    "HOROVOD_CYCLE_TIME",
    "HOROVOD_FUSION_THRESHOLD",
    "HOROVOD_CACHE_CAPACITY",
    "HOROVOD_STALL_CHECK_TIME_SECONDS",
)


@check("software", "rank")
def check_variables(setting: Setting) -> Iterator[Finding]:
    """HOROVOD_* variables and TF_CONFIG, names and values"""
    problems = [*_launcher(), *_names(), *_values(), *contradictions(setting)]
    yield from problems
    if not problems:
        count = sum(name.startswith("HOROVOD_") for name in os.environ)
        yield ok(f"{count} HOROVOD_* variable(s) set, and none that is unknown or contradicts another")


def _launcher() -> Iterator[Finding]:
    config = os.environ.get(rank_info.TF_CONFIG)
    if config is not None and not config.strip():
        yield fail("TF_CONFIG is set and empty, which breaks every strategy of TensorFlow", "unset TF_CONFIG")
    elif config:
        try:
            rank_info.tf_config(os.environ)
        except UserError as error:
            yield fail(*_split(error))
            return
    try:
        rank_info.detect()
    except UserError as error:
        if "TF_CONFIG" not in str(error):
            yield fail(*_split(error))


def _split(error: UserError) -> tuple[str, str]:
    """The sentence and the remedy of an error, which a semicolon or the last colon parts."""
    text = str(error)
    for mark in ("; ", ": "):
        if mark in text:
            reason, _, remedy = text.rpartition(mark)
            return reason, remedy
    return text, "unset it"


def _names() -> Iterator[Finding]:
    for name in sorted(os.environ):
        if name.startswith("HOROVOD_") and name not in HOROVOD_VARIABLES:
            close = difflib.get_close_matches(name, HOROVOD_VARIABLES, 1, 0.8)
            remedy = f"did you mean {close[0]}? unset {name}" if close else f"unset {name}"
            yield warn(f"{name} is no variable of Horovod: it has no effect", remedy)


def _values() -> Iterator[Finding]:
    for name, choices in CHOICES.items():
        value = os.environ.get(name)
        if value is not None and value.lower() not in choices:
            yield fail(f"{name}={value} is none of {', '.join(choices)}", f"unset {name}")
    for name in NUMBERS:
        value = os.environ.get(name)
        if value is not None and not re.fullmatch(r"\d+(\.\d+)?", value.strip()):
            yield fail(f"{name}={value} is no number", f"unset {name}")


def contradictions(setting: Setting) -> Iterator[Finding]:
    """Variables that cannot both be true, or that are against the launcher."""
    controller = os.environ.get("HOROVOD_CONTROLLER", "").lower()
    operations = os.environ.get("HOROVOD_CPU_OPERATIONS", "").lower()
    if setting.in_job and controller == "gloo" and not over_gloo():
        text = f"HOROVOD_CONTROLLER=gloo under {setting.place.launcher}, which gives Gloo no place to meet"
        yield fail(text, "unset HOROVOD_CONTROLLER, or start by horovodrun --gloo")
    elif setting.in_job and controller == "mpi" and over_gloo():
        text = f"HOROVOD_CONTROLLER=mpi under {controlled(setting.place.launcher)}: every process would be rank 0 of 1"
        yield fail(text, "unset HOROVOD_CONTROLLER, or start by mpirun")
    elif controller == "gloo" and operations == "mpi":
        text = "HOROVOD_CONTROLLER=gloo and HOROVOD_CPU_OPERATIONS=mpi contradict each other: without MPI's controller "
        yield fail(text + "there is no MPI", "unset HOROVOD_CPU_OPERATIONS")
    if os.environ.get("HOROVOD_TIMELINE") and not os.access(Path(os.environ["HOROVOD_TIMELINE"]).parent, os.W_OK):
        text = f"HOROVOD_TIMELINE={os.environ['HOROVOD_TIMELINE']} is in a folder that cannot be written to"
        yield warn(text, "unset HOROVOD_TIMELINE, or give a file in another folder")
