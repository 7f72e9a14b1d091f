"""What to use in place of options that earlier versions had, by command; kept until 1.0."""

from __future__ import annotations

from hvdtrain.errors import UserError

TRAIN = {
    "--api": "name the pair by --strategy, such as keras-fit, module or ndarray; --strategy help lists all",
    "--auto-resume": "use --resume auto with --name",
    "--beta1": "use --betas BETA1:BETA2",
    "--beta2": "use --betas BETA1:BETA2",
    "--checkpoint-seconds": "use --checkpoint-every with seconds, such as 60s",
    "--cuda-graph": "use --compile, by which PyTorch may launch a step as CUDA graphs",
    "--framework-profiler": "run the framework's profiler in a script of your own, as docs/timeline.md shows",
    "--kvstore": "name the store by --strategy: kvstore-device, kvstore-local, kvstore-dist or kvstore-dist-device",
    "--lr-gamma": "use --schedule step:FACTOR:EPOCHS",
    "--lr-power": "use --schedule polynomial:POWER",
    "--lr-rise": "use --schedule onecycle:SHARE",
    "--lr-step-epochs": "use --schedule step:FACTOR:EPOCHS",
    "--offline": "set the variable HVDTRAIN_OFFLINE=1",
    "--op": "leave it out: gradients are averaged",
    "--set": "use --arg NAME=VALUE",
    "--tensorboard": "use --tracker tensorboard",
    "--validation": "use --split TRAIN/VALIDATION/TEST, such as 0.8/0.1/0.1, or 0.9/0.1 for data with a test part",
}
"""Of training; also the options of files for --config and of sweeps."""
_HOROVOD = {
    "--autotune": "AUTOTUNE=1",
    "--autotune-bayes-opt-max-samples": "AUTOTUNE_BAYES_OPT_MAX_SAMPLES=N",
    "--autotune-gaussian-process-noise": "AUTOTUNE_GAUSSIAN_PROCESS_NOISE=X",
    "--autotune-log-file": "AUTOTUNE_LOG=FILE",
    "--autotune-steps-per-sample": "AUTOTUNE_STEPS_PER_SAMPLE=N",
    "--autotune-warmup-samples": "AUTOTUNE_WARMUP_SAMPLES=N",
    "--cache-capacity": "CACHE_CAPACITY=N",
    "--cycle-time-ms": "CYCLE_TIME=MILLISECONDS",
    "--fusion-threshold-mb": "FUSION_THRESHOLD=BYTES",
    "--gloo-timeout-seconds": "GLOO_TIMEOUT_SECONDS=N",
    "--hierarchical-allgather": "HIERARCHICAL_ALLGATHER=1",
    "--hierarchical-allreduce": "HIERARCHICAL_ALLREDUCE=1",
    "--log-level": "LOG_LEVEL=LEVEL",
    "--mpi-threads-disable": "MPI_THREADS_DISABLE=1",
    "--no-stall-check": "STALL_CHECK_DISABLE=1",
    "--num-nccl-streams": "NUM_NCCL_STREAMS=N",
    "--stall-check-shutdown-time-seconds": "STALL_SHUTDOWN_TIME_SECONDS=N",
    "--stall-check-warning-time-seconds": "STALL_CHECK_TIME_SECONDS=N",
    "--thread-affinity": "THREAD_AFFINITY=CORE",
    "--timeline": "TIMELINE=FILE",
    "--timeline-mark-cycles": "TIMELINE_MARK_CYCLES=1",
    "--torus-allreduce": "TORUS_ALLREDUCE=1",
}
LAUNCH = {
    **{option: f"use --env HOROVOD_{setting}" for option, setting in _HOROVOD.items()},
    "--config-file": "set Horovod's variables by --env HOROVOD_NAME=VALUE",
    "--mail-type": "use --sbatch --mail-type=EVENTS",
    "--mail-user": "use --sbatch --mail-user=ADDRESS",
    "--mem": "use --sbatch --mem=SIZE",
}
RUNS = {
    "--all": "use hvdtrain runs | less, as a pipe gets all runs",
    "--filter": "use hvdtrain runs | grep TEXT, or --json and jq",
    "--reverse": "use --sort -COLUMN, or --sort COLUMN for the least value first",
}
WATCH = {"--token-file": "leave it out: the address that --serve prints has a token"}


def error(option: str, replacement: str) -> UserError:
    """The error of an option that is given, though it went."""
    return UserError(f"{option} is no longer an option", replacement)
