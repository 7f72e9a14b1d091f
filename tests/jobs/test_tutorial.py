"""The tutorial: its commands run in their order, and do what it says.

In processes, as a reader starts them; those that start no ranks, in the process of the test.
"""

import contextlib
import json
import re
import runpy
import shlex
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from PIL import Image
from support.in_process import command, inside, train_here
from support.jobs import ROOT, run

pytestmark = pytest.mark.needs("torch")
PAGE = (ROOT / "docs" / "tutorial.md").read_text()


def files() -> dict[str, str]:
    """What the reader writes: each file in backquotes right before a fenced block, and the block."""
    return dict(re.findall(r"`([\w.]+)`:\n\n```\w+\n(.*?)^```", PAGE, re.M | re.S))


def leave_pictures(folder):
    """A third of them."""
    for path in folder.glob("*/*.jpg"):
        if int(path.stem) >= 66:
            path.unlink()


@pytest.mark.matrix
def test_a_reader_comes_to_the_end(tmp_path):
    for name, content in files().items():
        (tmp_path / name).write_text(content)
    said = {}
    for line in re.findall(r"^    ((?:hvdtrain|python) .*)$", PAGE, re.M):
        program, *words = shlex.split(line.replace("$CHECKOUT", shlex.quote(str(ROOT))))
        if program == "hvdtrain" and words[0] in ("show", "runs", "diff", "report", "predict", "export"):
            status, said[line] = command(tmp_path, *words)
        else:
            module = ["-m", "hvdtrain"] if program == "hvdtrain" else []
            status, said[line] = run(["python", *module, *words], tmp_path, 300)
        assert status == 0, f"{line}\n{said[line]}"
        if "shapes.py" in line:
            leave_pictures(tmp_path / "photos")
    results = {name: json.loads((tmp_path / "runs" / name / "result.json").read_text()) for name in ("first", "alone")}
    assert results["first"]["metrics"]["accuracy"] > 0.6
    assert "circle" in said["python classify.py photos/circle/000.jpg"]
    (difference,) = (text for line, text in said.items() if line.startswith("hvdtrain diff"))
    assert "strategy" in difference and "parameters" not in difference, difference
    assert len(said) >= 10


COLORS = np.array([[[20, 20, 240], [230, 220, 30]], [[240, 30, 60], [128, 128, 128]]], np.uint8)
PHOTO = COLORS.repeat(24, 0).repeat(16, 1)


def photos(folder: Path) -> list[str]:
    """The names of photos of which each is another than Pillow's convert("RGB") and resize make of it."""
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees to see it upright
    sixteen_bits = np.linspace(0, 65535, 48 * 32).astype(np.uint16).reshape(48, 32)
    palette = Image.fromarray(PHOTO).quantize(4)
    Image.fromarray(PHOTO).save(folder / "rotated.jpg", exif=exif)
    Image.fromarray(sixteen_bits).save(folder / "sixteen.png")
    palette.save(folder / "transparent.png", transparency=palette.getpixel((0, 0)))
    Image.fromarray(PHOTO).convert("CMYK").save(folder / "inks.jpg")
    Image.fromarray(np.dstack([PHOTO, PHOTO[:, :, 2]])).save(folder / "alpha.webp")
    return ["rotated.jpg", "sixteen.png", "transparent.png", "inks.jpg", "alpha.webp"]


def test_the_program_with_the_exported_network_classifies_as_predict_does(tmp_path):
    pytest.importorskip("onnxruntime")
    for name, content in files().items():
        (tmp_path / name).write_text(content)
    for label, channel in (("red", 0), ("green", 1), ("blue", 2)):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(4):
            pixels = np.full((8, 8, 3), 20 * number, np.uint8)
            pixels[:, :, channel] = 255
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{number}.png")
    options = "--data photos --split 0.5 --image-size 32x32 --model network.toml --epochs 8 --batch-size 6 --lr 0.05"
    train_here(tmp_path, "torch", *options.split())
    status, output = command(tmp_path, "export", "runs/run", "network.onnx")
    assert status == 0, output
    names = photos(tmp_path)
    status, output = command(tmp_path, "predict", "runs/run", *names)
    assert status == 0, output
    predicted = [line.split("\t") for line in output.splitlines()]
    assert [line[0] for line in predicted] == names
    for name, *classes in predicted:
        argv = mock.patch.object(sys, "argv", ["classify.py", name])
        with inside(tmp_path), argv, contextlib.redirect_stdout(None):
            program = runpy.run_path("classify.py")
        powers = np.exp(program["logits"][0] - program["logits"].max())
        shares = dict(zip(program["classes"], powers / powers.sum(), strict=True))
        printed = {label: float(share) for label, share in map(str.split, classes)}
        assert printed == pytest.approx(shares, abs=6e-4), name
