"""python -m hvdtrain scale RUN: predict speed, efficiency, time and cost on more ranks than were measured.

With --compare-compression, compare what ranks may send, also without a run.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from hvdtrain.config.option_parser import OptionParser, parser_of, read_arguments
from hvdtrain.measure.scale import comparison_output, output
from hvdtrain.measure.scale.comparison import candidates, choice, compare
from hvdtrain.measure.scale.inputs import ScaleOptions, read_job
from hvdtrain.measure.scale.prediction import Job, predict_all
from hvdtrain.system.command import exit_status
from hvdtrain.system.files import require_writable
from hvdtrain.system.text import printable
from hvdtrain.views.table import Table, paragraph

PROGRAM = "python -m hvdtrain scale"


def parser() -> OptionParser:
    return parser_of(ScaleOptions, PROGRAM)


@exit_status()
def main(argv: list[str]) -> None:
    """Predict, print the table and write it; ends the process with 2 for invalid options or files."""
    options = read_arguments(ScaleOptions, PROGRAM, argv)
    require_writable(options.output, "--output")
    job, notes = read_job(options)
    if options.compare_compression:
        _compare(options, job, notes)
        return
    predictions = predict_all(job, options.ranks)
    sentences = output.findings(job, predictions)
    output.write(options.output, job, predictions, sentences, notes)
    _print(sentences, output.table(predictions), notes, options.output, output.FILES)


def _compare(options: ScaleOptions, job: Job, notes: list[str]) -> None:
    """Compare methods of compression on each number of ranks, print the table and write it."""
    combinings, missing = candidates(options.compression, options.sync_every, job.model)
    by_ranks = [compare(job.model, ranks, job.rows(ranks), combinings) for ranks in sorted(set(options.ranks))]
    compared = [*itertools.chain(*by_ranks)]
    sentences, notes = [*map(choice, by_ranks)], [*notes, *missing]
    comparison_output.write(options.output, job, compared, sentences, notes)
    _print(sentences, comparison_output.table(compared), notes, options.output, comparison_output.FILES)


def _print(sentences: list[str], table: Table, notes: list[str], folder: Path, files: tuple[str, ...]) -> None:
    print(*map(paragraph, sentences), sep="\n")
    print(f"\n{table.terminal()}\n")
    print(*(paragraph(f"Assumed: {note}.") for note in notes), sep="\n")
    print(f"\nwritten to {printable(str(folder))}: {', '.join(files)}")
