"""The learning rate over a run, as --schedule gives it."""

from __future__ import annotations

from dataclasses import dataclass

from hvdtrain.config.option import invalid, numbers, option
from hvdtrain.system.text import did_you_mean

ARGUMENTS = {
    "constant": (),
    "step": ("factor", "epochs"),
    "cosine": (),
    "polynomial": ("power",),
    "onecycle": ("share",),
}
"""By kind of schedule, the arguments that follow it."""


@dataclass(frozen=True)
class Schedule:
    """A schedule with its arguments, as KIND:ARGUMENT:...; each may be left out."""

    kind: str = option("cosine")
    factor: float = option(0.1, above=0)
    """Of step: what it multiplies the learning rate by."""
    epochs: int = option(5, above=0)
    """Of step: epochs between two changes."""
    power: float = option(1.0, above=0)
    """Of polynomial; 1 falls linearly to 0."""
    share: float = option(0.3, minimum=0, below=1)
    """Of onecycle: share of the run in which the learning rate rises."""

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """The schedule that the text names. Raises UserError."""
        kind, *given = text.split(":")
        forms = [":".join([name, *map(str.upper, arguments)]) for name, arguments in ARGUMENTS.items()]
        if kind not in ARGUMENTS:
            remedy = f"use {', '.join(forms[:-1])} or {forms[-1]}"
            raise invalid("schedule", text, f"no such schedule{did_you_mean(kind, ARGUMENTS)}", remedy)
        form = next(form for form in forms if form.partition(":")[0] == kind)
        return cls(kind, **numbers(cls, "schedule", text, given, ARGUMENTS[kind], f"use {form}"))
