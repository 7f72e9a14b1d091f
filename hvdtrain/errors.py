"""The ways to end otherwise than planned, and the exit status that each one gives."""


class HvdtrainError(Exception):
    """An end that is explained in one sentence, never with a traceback."""

    exit_status = 1
    told = False
    """Whether the user has read it: a failure of a job is said at once, and the job takes seconds to end."""


class UserError(HvdtrainError):
    """What was asked for cannot be done: an option, a file or an installation is at fault (exit status 2)."""

    exit_status = 2


class Stopped(HvdtrainError):
    """Somebody asked to stop, and a checkpoint was written: resume (exit status 75, EX_TEMPFAIL of sysexits.h)."""

    exit_status = 75


class TrainingError(HvdtrainError):
    """Training started and could not go on: a loss that is not finite, ranks that differ (exit status 1)."""
