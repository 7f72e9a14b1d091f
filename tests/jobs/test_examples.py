"""The examples train, by the commands that they begin with."""

import ast
import contextlib
import io
import json
import re
import shlex
import shutil
import tarfile
from pathlib import Path

import nbclient
import nbformat
import numpy as np
import pytest
from PIL import Image
from support.jobs import ROOT, succeed
from support.stack import require

from hvdtrain.networks.registry import NETWORKS
from hvdtrain.system.python_files import load_object

EXAMPLES = ROOT / "examples"
MATRIX = pytest.mark.matrix(minutes=0.7)
# An example, the number of a command, options that shorten it, and the least value of a metric (the most, if negative).
COMMANDS = [
    pytest.param("two_moons.py", 0, "", "accuracy", 0.95, marks=MATRIX),  # the notebook also trains it
    pytest.param("linear_regression.py", 0, "", "absolute error", -0.01, marks=MATRIX),
    pytest.param("linear_regression.py", 1, "", "absolute error", -0.01, marks=MATRIX),
    pytest.param("keras_regression.py", 0, "--epochs 4", "absolute error", -3, marks=MATRIX),
    pytest.param("keras_regression.py", 1, "--epochs 4", "absolute error", -3, marks=MATRIX),
    ("mxnet_module.py", 0, "--epochs 2", "accuracy", 0.8),
    pytest.param("mxnet_module.py", 1, "--epochs 8", "accuracy", 0.8, marks=MATRIX),
    pytest.param("resnet20.py", 0, "--epochs 2", "accuracy", 0.2, marks=MATRIX),
    pytest.param("resnet20.py", 1, "--data digits --epochs 2", "accuracy", 0.2, marks=MATRIX),
    # The short suite has image folders in test_data_sources.
    pytest.param("image_folder.py", 0, "--epochs 3 --batch-size 12", "accuracy", 0.6, marks=MATRIX),
    pytest.param("own_loop.py", 0, "", "accuracy", 0.95, marks=MATRIX),  # as support/user_loop.py
    pytest.param("own_loop.py", 1, "", "accuracy", 0.95, marks=MATRIX),
    pytest.param("own_loop.py", 2, "", "accuracy", 0.95, marks=MATRIX),
    ("own_formats.py", 0, "--epochs 8 --batch-size 12", "accuracy", 0.6),
    pytest.param("own_formats.py", 1, "--epochs 8 --batch-size 12", "accuracy", 0.6, marks=MATRIX),
    pytest.param("own_formats.py", 2, "--epochs 8 --batch-size 12", "accuracy", 0.6, marks=MATRIX),
    pytest.param("sequences.py", 0, "--epochs 4 --arg longest=12", "within 0.1", 0.8, marks=MATRIX),
]


def commands(example: str) -> list[str]:
    """The commands in the docstring of an example."""
    text = ast.get_docstring(ast.parse((EXAMPLES / example).read_text()))
    return [line.strip() for line in text.splitlines() if line.startswith(("    hvdtrain ", "    python "))]


def draw_stripes(folder: Path, side: int = 24) -> None:
    """Images, side x side pixels in two colors each, of three classes that mirroring does not change."""
    generator, (row, column) = np.random.default_rng(0), np.indices((side, side))
    for part, count in (("train", 60), ("test", 20)):
        for name, values in (("level", row), ("upright", column), ("slanted", row + column)):
            inside = folder / part / name
            inside.mkdir(parents=True)
            for number in range(count):
                colors, begin = generator.integers(0, 256, (2, 3), np.uint8), generator.integers(0, 6)
                Image.fromarray(colors[(values + begin) // 3 % 2]).save(inside / f"{number:02}.png")


def pack(folder: Path, part: str) -> None:
    """The images of a part of photos/ also in a tar shard, and in photos.h5 where h5py is installed."""
    paths, labels = sorted((folder / "photos" / part).glob("*/*.png")), []
    (folder / "shards").mkdir(exist_ok=True)
    with tarfile.open(folder / "shards" / f"{part}-000000.tar", "w") as shard:
        for number, path in enumerate(paths):
            labels.append(("level", "slanted", "upright").index(path.parent.name))
            jpeg = io.BytesIO()
            Image.open(path).save(jpeg, "JPEG")
            for name, content in ((f"{number}.jpg", jpeg.getvalue()), (f"{number}.cls", str(labels[-1]).encode())):
                header = tarfile.TarInfo(name)
                header.size = len(content)
                shard.addfile(header, io.BytesIO(content))
    with contextlib.suppress(ImportError):
        import h5py

        with h5py.File(folder / "photos.h5", "a") as file:
            file[f"{part}/images"], file[f"{part}/labels"] = [np.asarray(Image.open(path)) for path in paths], labels


@pytest.fixture
def folder(tmp_path):
    """A folder with the examples."""
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("runs", "__pycache__"))
    return tmp_path


@pytest.mark.parametrize(("example", "number", "options", "metric", "limit"), COMMANDS)
def test_the_commands_of_an_example_train(example, number, options, metric, limit, folder):
    command = commands(example)[number]
    named = re.search(r"--framework (\w+)", command)
    require(named[1] if named else "torch")
    if "folder=photos" in command:
        draw_stripes(folder / "photos")
    if example == "own_formats.py":
        for name, package in (("hdf5", "h5py"), ("hugging_face", "datasets")):
            if f":{name}" in command:
                pytest.importorskip(package)
        draw_stripes(folder / "photos", 32)
        for part in ("train", "test"):
            pack(folder, part)
    output = succeed([*shlex.split(command), *options.split(), "--name", "a"], folder)
    value = json.loads((folder / "runs/a/result.json").read_text())["metrics"][metric]
    assert value <= -limit if limit < 0 else value >= limit, output


def test_every_command_is_tested():
    tested = sorted(getattr(one, "values", one)[:2] for one in COMMANDS)
    examples = sorted(path.name for path in EXAMPLES.glob("*.py"))
    assert tested == [(example, number) for example in examples for number in range(len(commands(example)))]


def test_the_page_lists_all_examples():
    listed = re.findall(r"^\| \[(.+?)\]\(\1\)", (EXAMPLES / "README.md").read_text(), re.M)
    assert sorted(listed) == sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb"))


def test_resnet20_is_the_built_in_network():
    assert load_object(f"{EXAMPLES}/resnet20.py:NETWORK", "--model") == NETWORKS["resnet20"]


@pytest.mark.needs("torch")
def test_the_notebook_runs_and_is_stored_without_results(folder, monkeypatch):
    stored = nbformat.read(EXAMPLES / "notebook.ipynb", 4)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in stored.cells)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # with it, kernels do not show the output of processes
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    ran = nbclient.NotebookClient(
        stored, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder / "examples")}}
    ).execute()
    shown = {cell.id: cell.outputs for cell in ran.cells if cell.cell_type == "code"}
    assert "[0] test accuracy" in "".join(output.get("text", "") for output in shown["launch_2"])
    (table,) = shown["table"]
    for line in table.text.splitlines()[1:]:
        _, one, two = line.split("loss ")
        assert one.split() == two.split(), table.text
    assert any("image/png" in output.get("data", {}) for output in shown["plot"])
