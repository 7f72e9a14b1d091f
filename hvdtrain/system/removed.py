"""What to use in place of options that earlier versions had, by command; kept until 1.0."""

from __future__ import annotations

from hvdtrain.errors import UserError

TRAIN = {
    "--api": "name the pair by --strategy, such as keras-fit, module or ndarray; --strategy help lists all",
    "--auto-resume": "use --resume auto with --name",
    "--beta1": "use --betas BETA1:BETA2",
    "--beta2": "use --betas BETA1:BETA2",
    "--checkpoint-seconds": "use --checkpoint-every with seconds, such as 60s",
    "--cuda-graph": "use --compile, with which PyTorch launches fewer operations",
    "--device-data": "leave it out: each step copies its rows to the GPU",
    "--framework-profiler": "profile a script with a loop of its own, for example by torch.profiler",
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
    "--thread-affinity": "THREAD_AFFINITY=CORE,CORE, one for each rank of a host",
    "--timeline": "TIMELINE=FILE",
    "--timeline-mark-cycles": "TIMELINE_MARK_CYCLES=1",
    "--torus-allreduce": "TORUS_ALLREDUCE=1",
}
SSH = {
    "--ssh-key": "name the key as IdentityFile in ~/.ssh/config",
    "--ssh-port": "name the port as Port in ~/.ssh/config",
}
"""Of ssh to other hosts."""
LAUNCH = {
    **SSH,
    **{option: f"use --env HOROVOD_{setting}" for option, setting in _HOROVOD.items()},
    "--config-file": "set Horovod's variables by --env HOROVOD_NAME=VALUE",
    "--cpus-per-rank": "use --sbatch --cpus-per-task=N",
    "--gloo": "leave it out: ranks are coordinated with Gloo, and under launch mpirun with MPI",
    "--host-discovery-script": "use --hostfile FILE, which is read again when it changes, with launch horovodrun",
    "--max-np": "use launch horovodrun, whose --hostfile may change while the job runs",
    "--mail-type": "use --sbatch --mail-type=EVENTS",
    "--mail-user": "use --sbatch --mail-user=ADDRESS",
    "--mem": "use --sbatch --mem=SIZE",
    "--mpi": "use launch mpirun",
    "--oversubscribe": "leave it out on this host; on others name as many slots as there are ranks, such as -H node1:4",
    "--script": "redirect the output: launch sbatch OPTIONS > FILE",
    "--time-limit": "use --time of launch sbatch, or timeout --preserve-status TIME hvdtrain launch ...",
}
LAUNCH_COMMANDS = {
    "cancel": "use scancel --batch --signal=TERM JOB, which leaves time for a checkpoint, or scancel if it waits",
    "status": "use squeue --me for the jobs, and hvdtrain runs for their training",
}
SWEEP = {
    "--np": "use --set ranks=N1,N2",
    "--out": "use --output",
    "--sampler-seed": "leave it out: the same search draws the same combinations in each folder",
}
RUNS = {
    "--all": "use hvdtrain runs | less, as a pipe gets all runs",
    "--reverse": "use --sort -COLUMN, or --sort COLUMN for the least value first",
}
BENCH = {
    "--data": "use --set data=NAME",
    "--idle-seconds": "use benchmarks/idle.py of hvdtrain's sources",
    "--show": "leave it out: an unknown name of --rows lists all",
}
_NOT_PREDICTED = "leave it out: scale predicts steps, and no longer what failures, storage and hosts cost"
SCALE = {
    **dict.fromkeys(
        ("--checkpoint-s", "--host-mtbf-hours", "--price-per-host-hour", "--restart-s", "--storage-images-per-s"),
        _NOT_PREDICTED,
    ),
    **dict.fromkeys(("--epochs", "--images"), "divide the images of the training by the predicted images/s"),
    **dict.fromkeys(("--algorithm", "--library"), "give a run of the --strategy to predict, such as one of one rank"),
    **dict.fromkeys(
        ("--classes", "--compute-ms", "--gradient-mb", "--input-shape", "--model", "--parameters"),
        "train some steps of the network on one rank, and give the folder of that run",
    ),
    **dict.fromkeys(("--bandwidth-gb-s", "--latency-us"), "use --link LATENCY_US/GB_S"),
    **dict.fromkeys(
        ("--local-bandwidth-gb-s", "--local-latency-us"), "give a table of the ranks of one host by --allreduce"
    ),
    **dict.fromkeys(("--cycle-ms", "--messages"), "leave it out: Horovod's own default is predicted"),
    "--compare-compression": "name the methods by --compression, such as none int8 powersgd:2",
    "--overlap": "leave it out: it is 0.5 for Horovod and ddp, and 0 for ring and mpi",
    "--spread": "leave it out: it is that of the run's steps",
    "--sync-every": "give a run that was trained with --sync-every",
}
_LOAD = 'leave it out for a network; for a task use hvdtrain.load("runs/NAME"), which returns its model'
EXPORT = {
    "--framework": "leave it out: an ONNX model is compared with the framework that wrote the checkpoint",
    "--model": _LOAD,
    "--set": _LOAD,
}
PREDICT = {"--model": _LOAD, "--output": _LOAD, "--set": _LOAD, "--test": _LOAD}
REPLAY = {"--quiet": "redirect standard error: standard output has only the result"}


def error(name: str, replacement: str, what: str = "an option") -> UserError:
    """The error of an option, or something else, that is given, though it went."""
    return UserError(f"{name} is no longer {what}", replacement)
