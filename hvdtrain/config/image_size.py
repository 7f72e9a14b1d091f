"""The size or shape to which image files are resized, as --image-size gives it."""

from __future__ import annotations

import re

from hvdtrain.config.option import invalid

FORM = re.compile(r"([13]x)?[1-9]\d{0,4}x[1-9]\d{0,4}")


def parse_image_size(text: str) -> tuple[int | None, int, int]:
    """Channels, height and width; channels are None if the text has none. Raises UserError."""
    if not FORM.fullmatch(text):
        remedy = "give HEIGHTxWIDTH, or 1xHEIGHTxWIDTH for gray and 3x... for color"
        raise invalid("image_size", text, "is not an image size", remedy)
    *channels, height, width = map(int, text.split("x"))
    return channels[0] if channels else None, height, width
