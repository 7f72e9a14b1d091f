"""python -m hvdtrain scale RUN: predict speed, efficiency, time and cost on more ranks than were measured."""

from __future__ import annotations

from hvdtrain.config.option import OptionParser, parser_of, read_arguments
from hvdtrain.measure.scale import output
from hvdtrain.measure.scale.inputs import ScaleOptions, read_job
from hvdtrain.measure.scale.prediction import predict_all
from hvdtrain.system.command import exit_status
from hvdtrain.system.files import require_writable
from hvdtrain.system.text import printable
from hvdtrain.views.table import paragraph

PROGRAM = "python -m hvdtrain scale"


def parser() -> OptionParser:
    return parser_of(ScaleOptions, PROGRAM)


@exit_status()
def main(argv: list[str]) -> None:
    """Predict, print the table and write it; ends the process with 2 for invalid options or files."""
    options = read_arguments(ScaleOptions, PROGRAM, argv)
    require_writable(options.output, "--output")
    job, notes = read_job(options)
    predictions = predict_all(job, options.ranks)
    sentences = output.findings(job, predictions)
    output.write(options.output, job, predictions, sentences, notes)
    print(*map(paragraph, sentences), sep="\n")
    print(f"\n{output.table(predictions).terminal()}\n")
    print(*(paragraph(f"Assumed: {note}.") for note in notes), sep="\n")
    print(f"\nwritten to {printable(str(options.output))}: {', '.join(output.FILES)}")
