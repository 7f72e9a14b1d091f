"""Slurm's words for why a job waits or has failed, in words that say what to expect."""

from __future__ import annotations

REASONS = {
    "AssociationJobLimit": "a limit on jobs of the account is reached",
    "BadConstraints": "no node has what the job asks for: cancel it, and ask for less",
    "BeginTime": "it may not start yet; a job that was queued again waits for up to two minutes",
    "BootFail": "a node could not be started",
    "BurstBufferResources": "it waits for space in the burst buffer",
    "Cleaning": "what remains of its last start is being removed",
    "DeadLine": "it cannot end before its deadline",
    "Dependency": "it waits for the jobs on which it depends",
    "DependencyNeverSatisfied": "a job on which it depends has failed, so it never starts: cancel it",
    "InvalidAccount": "the account is not valid: give another --account",
    "InvalidQOS": 'the QOS is not valid: give another --sbatch "--qos=NAME"',
    "JobArrayTaskLimit": "as many tasks of the array run as its % allows",
    "JobHeldAdmin": "an administrator holds it back",
    "JobHeldUser": "it is held back: scontrol release JOB starts it",
    "JobLaunchFailure": "Slurm could not start it: the log of the node may say why",
    "Licenses": "it waits for a license",
    "NodeDown": "a node that it asks for is down",
    "NonZeroExitCode": "its program failed",
    "OutOfMemory": "it used more memory than it asked for: give more --mem",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "PartitionNodeLimit": "it asks for more nodes than the partition has or allows: cancel it, and give fewer --nodes",
    "PartitionTimeLimit": "its time limit is above that of the partition: cancel it, and give less --time",
    "Priority": "jobs of a higher priority come first",
    "Prolog": "its nodes are being prepared",
    "RaisedSignal": "a signal ended it",
    "Reservation": "it waits for its reservation",
    "ReqNodeNotAvail": "a node that it asks for is not available",
    "Resources": "it waits for nodes to become free",
    "SystemFailure": "Slurm or a node failed",
    "TimeLimit": "it reached its time limit",
}
BEGINNINGS = {
    "Assoc": "a limit of the account or user is reached",
    "MaxCpuPerAccount": "a limit of the account is reached",
    "Nodes_required_for_job_are_DOWN": "the nodes that it needs are down, drained or reserved",
    "Partition": "a limit of the partition is reached",
    "QOS": "a limit of the QOS is reached",
    "ReqNodeNotAvail": "a node that it asks for is not available",
}
"""Of words of which there are many, and of those that go on with details."""


OF_ENDED = ("BootFail", "DeadLine", "JobLaunchFailure", "NodeDown", "NonZeroExitCode", "OutOfMemory", "RaisedSignal",
            "SystemFailure", "TimeLimit")  # fmt: skip
"""Those that say why a job has ended; others stay from the time when it waited."""


def in_words(reason: str, active: bool) -> str:
    """Slurm's reason in words; as it is where there are none, and empty if there is nothing to say."""
    if not active and reason not in OF_ENDED:
        return ""
    if reason in REASONS:
        return REASONS[reason]
    found = next((words for beginning, words in BEGINNINGS.items() if reason.startswith(beginning)), "")
    return f"{found} ({reason})" if found else reason
