"""Environment variables that control how Horovod and TensorFlow connect and work."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from hvdtrain.doctor.check import ExaminedRank, Finding, check, fail, ok, warn
from hvdtrain.errors import UserError
from hvdtrain.system import rank_info

# Read by Horovod 0.28.1, at run time or when it is built; EVENT_DRIVEN and IDLE_CYCLE_TIME by our correction of it.
NAMES = """
ADASUM_MPI_CHUNK_SIZE AUTOTUNE AUTOTUNE_BAYES_OPT_MAX_SAMPLES AUTOTUNE_GAUSSIAN_PROCESS_NOISE AUTOTUNE_LOG
AUTOTUNE_STEPS_PER_SAMPLE AUTOTUNE_WARMUP_SAMPLES BATCH_D2D_MEMCOPIES BUILD_ARCH_FLAGS BUILD_CUDA_CC_LIST
CACHE_CAPACITY CCL_BGT_AFFINITY CCL_CACHE CCL_FIN_THREADS CMAKE CONTROLLER CPU_OPERATIONS CROSS_RANK CROSS_SIZE
CUDA_HOME CUDA_INCLUDE CUDA_LIB CYCLE_TIME DISABLE_GROUP_FUSION DYNAMIC_PROCESS_SETS ELASTIC ELASTIC_TIMEOUT
ENABLE_ASYNC_COMPLETION ENABLE_XLA_OPS EVENT_DRIVEN FUSION_THRESHOLD GLOO_IFACE GLOO_RENDEZVOUS_ADDR
GLOO_RENDEZVOUS_PORT GLOO_TIMEOUT_SECONDS GPU GPU_ALLGATHER GPU_ALLREDUCE GPU_ALLTOALL GPU_BROADCAST GPU_OPERATIONS
GPU_REDUCESCATTER HIERARCHICAL_ALLGATHER HIERARCHICAL_ALLREDUCE HOSTNAME IDLE_CYCLE_TIME LOCAL_RANK LOCAL_SIZE
LOG_HIDE_TIME LOG_LEVEL MPI_THREADS_DISABLE NCCL_HOME NCCL_INCLUDE NCCL_LIB NCCL_LINK NUM_NCCL_STREAMS
OPERATION_TIMEOUT RANK ROCM_HOME SECRET_KEY SIZE SPARK_PYTHONPATH SPARK_START_TIMEOUT SPARK_USE_LOCAL_RANK_GPU_INDEX
SPARK_WORK_DIR STALL_CHECK_DISABLE STALL_CHECK_TIME_SECONDS STALL_SHUTDOWN_TIME_SECONDS START_TIMEOUT THREAD_AFFINITY
TIMELINE TIMELINE_MARK_CYCLES TORUS_ALLREDUCE WITHOUT_GLOO WITHOUT_MPI WITHOUT_MXNET WITHOUT_PYTORCH
WITHOUT_TENSORFLOW WITH_GLOO WITH_MPI WITH_MXNET WITH_PYTORCH WITH_TENSORFLOW
"""
HOROVOD_VARIABLES = frozenset(f"HOROVOD_{name}" for name in NAMES.split())
CHOICES = {
    "HOROVOD_CONTROLLER": ("gloo", "mpi"),
    "HOROVOD_CPU_OPERATIONS": ("gloo", "mpi", "ccl"),
    "HOROVOD_EVENT_DRIVEN": ("0", "1"),
}
NUMBERS = (
    "HOROVOD_CYCLE_TIME",
    "HOROVOD_IDLE_CYCLE_TIME",
    "HOROVOD_FUSION_THRESHOLD",
    "HOROVOD_CACHE_CAPACITY",
    "HOROVOD_STALL_CHECK_TIME_SECONDS",
)


@check("software", "rank")
def check_variables(context: ExaminedRank) -> Iterator[Finding]:
    """names and values of HOROVOD_* variables and TF_CONFIG"""
    problems = [*_tf_config(), *_launcher(), *_names(), *_values(), *_contradictions(context)]
    yield from problems
    if not problems:
        count = sum(name.startswith("HOROVOD_") for name in os.environ)
        yield ok(f"{count} HOROVOD_* variable(s) set, none of them unknown or contradictory")


def _tf_config() -> Iterator[Finding]:
    config = os.environ.get(rank_info.TF_CONFIG)
    if config is not None and not config.strip():
        yield fail("TF_CONFIG is set but empty, which breaks every strategy of TensorFlow", "unset TF_CONFIG")
    elif config:
        try:
            rank_info.cluster()
        except UserError as error:
            yield fail(error.reason, error.remedy)


def _launcher() -> Iterator[Finding]:
    without = {name: value for name, value in os.environ.items() if name != rank_info.TF_CONFIG}
    try:
        rank_info.detect(without)
    except UserError as error:
        yield fail(error.reason, error.remedy)


def _names() -> Iterator[Finding]:
    for name in sorted(os.environ):
        if name.startswith("HOROVOD_") and name not in HOROVOD_VARIABLES:
            close = difflib.get_close_matches(name, HOROVOD_VARIABLES, 1, 0.8)
            remedy = f"did you mean {close[0]}? unset {name}" if close else f"unset {name}"
            yield warn(f"{name} is not a variable of Horovod: it has no effect", remedy)


def _values() -> Iterator[Finding]:
    for name, choices in CHOICES.items():
        value = os.environ.get(name)
        if value is not None and value.lower() not in choices:
            yield fail(f"{name}={value} is not one of {', '.join(choices)}", f"unset {name}")
    for name in NUMBERS:
        value = os.environ.get(name)
        if value is not None and not re.fullmatch(r"\d+(\.\d+)?", value.strip()):
            yield fail(f"{name}={value} is not a number", f"unset {name}")
    timeline = os.environ.get("HOROVOD_TIMELINE")
    if timeline and not os.access(Path(timeline).parent, os.W_OK):
        text = f"HOROVOD_TIMELINE={timeline} is in a folder that is not writable"
        yield warn(text, "unset HOROVOD_TIMELINE, or give a file in another folder")


def uses_gloo() -> bool:
    """Whether the launcher passed the address of a Gloo rendezvous to this rank."""
    return "HOROVOD_GLOO_RENDEZVOUS_ADDR" in os.environ


def with_controller(launcher: str) -> str:
    """A launcher's name with Horovod's controller. horovodrun --mpi is detected as mpirun, by its variables."""
    return "horovodrun --gloo" if launcher == "horovodrun" else launcher


def _contradictions(context: ExaminedRank) -> Iterator[Finding]:
    """Variables that contradict each other or the launcher."""
    controller = os.environ.get("HOROVOD_CONTROLLER", "").lower()
    operations = os.environ.get("HOROVOD_CPU_OPERATIONS", "").lower()
    launcher = context.rank_info.launcher
    if context.in_job and controller == "gloo" and not uses_gloo():
        text = f"HOROVOD_CONTROLLER=gloo under {launcher}, which does not provide a Gloo rendezvous"
        yield fail(text, "unset HOROVOD_CONTROLLER, or start with horovodrun --gloo")
    elif context.in_job and controller == "mpi" and uses_gloo():
        text = f"HOROVOD_CONTROLLER=mpi under {with_controller(launcher)}: every process would be rank 0 of 1"
        yield fail(text, "unset HOROVOD_CONTROLLER, or start with mpirun")
    elif controller == "gloo" and operations == "mpi":
        text = (
            "HOROVOD_CONTROLLER=gloo and HOROVOD_CPU_OPERATIONS=mpi contradict each other: "
            "MPI operations need the MPI controller"
        )
        yield fail(text, "unset HOROVOD_CPU_OPERATIONS")
