"""The decay rates of adam and adamw, as --betas gives them."""

from __future__ import annotations

from dataclasses import dataclass

from hvdtrain.config.option import numbers, option


@dataclass(frozen=True)
class Betas:
    """Decay rates of the mean of gradients and of that of squared gradients: BETA1:BETA2."""

    beta1: float = option(0.9, minimum=0, below=1)
    beta2: float = option(0.999, minimum=0, below=1)

    @classmethod
    def parse(cls, text: str) -> Betas:
        """The two rates in the text. Raises UserError."""
        remedy = "give BETA1:BETA2, such as 0.9:0.999"
        return cls(**numbers(cls, "betas", text, text.split(":"), ("beta1", "beta2"), remedy))
