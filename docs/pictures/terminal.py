"""Draw docs/terminal.svg from a real run on two processes: `make docs-pictures`."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

COMMAND = "horovodrun -np 2 python -m hvdtrain.torch_lenet"
PICTURE = Path(__file__).parents[1] / "terminal.svg"
LABEL = re.compile(r"\[\d+(?:,\d+)?\]<std(?:out|err)>:")
"""What horovodrun and mpirun put before each line that they forward."""


def run() -> list[str]:
    """The ranks' output, without what horovodrun itself prints before it starts them."""
    with tempfile.TemporaryDirectory() as folder:
        job = subprocess.run(
            COMMAND.split(), cwd=folder, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    return [line for line in job.stdout.splitlines() if LABEL.match(line)]


def draw(lines: list[str]) -> None:
    """Write the picture: the command, then its output with dimmed labels."""
    with open("/dev/null", "w") as nowhere:
        console = Console(record=True, width=120, file=nowhere)
        console.print(Text.assemble(("$ ", "bold green"), (COMMAND, "bold")))
        for line in lines:
            text = Text(line)
            text.highlight_regex(LABEL, "dim")
            text.highlight_regex(r"test accuracy [0-9.]+", "bold green")
            console.print(text)
        PICTURE.write_text(console.export_svg(title="hvdtrain", unique_id="hvdtrain"))


if __name__ == "__main__":
    draw(run())
