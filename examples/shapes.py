"""Draw pictures to train on: circles, squares and triangles, as JPEG files in a folder for each (docs/tutorial.md).

python examples/shapes.py photos
hvdtrain train -n 2 --data photos --split 0.8 --image-size 32x32 --epochs 4
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

PICTURES = 200
"""In each class."""


def draw(shape: str, generator: np.random.Generator) -> Image.Image:
    """One shape of a random color, size, place and angle, on a random background: RGB, 48 to 96 pixels wide."""
    width, height = generator.integers(48, 97, 2)
    light = generator.integers(120, 256, 3)
    picture = Image.new("RGB", (int(width), int(height)), tuple(map(int, light)))
    center = generator.uniform(0.45, 0.55, 2) * (width, height)
    corners = {"circle": 40, "square": 4, "triangle": 3}[shape]
    angles = generator.uniform(-0.3, 0.3) + np.pi / 4 + 2 * np.pi * np.arange(corners) / corners
    points = center + generator.uniform(0.35, 0.45) * min(width, height) * np.stack([np.cos(angles), np.sin(angles)], 1)
    ImageDraw.Draw(picture).polygon([tuple(map(float, point)) for point in points], tuple(map(int, light // 3)))
    return picture


def main(folder: Path) -> None:
    """Write the pictures; the same ones each time."""
    for number, shape in enumerate(("circle", "square", "triangle")):
        (folder / shape).mkdir(parents=True, exist_ok=True)
        for i in range(PICTURES):
            draw(shape, np.random.default_rng((number, i))).save(folder / shape / f"{i:03}.jpg")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
