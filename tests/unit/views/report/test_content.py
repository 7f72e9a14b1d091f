"""The accuracy of each class, by its name."""

from __future__ import annotations

from pathlib import Path

from support.report import make_run, write

from hvdtrain.views.report.content import MAX_CLASSES


def test_classes_are_listed_by_name_from_the_lowest_accuracy(tmp_path: Path) -> None:
    for seed, accuracy in ((0, 0.5), (1, 0.7), (2, 0.6)):
        classes = {"zebra": accuracy, "<b>ant": 0.9, "without images": float("nan")}
        make_run(tmp_path / "runs" / str(seed), seed=seed, per_class_accuracy=classes)
    output = write(tmp_path, tmp_path / "runs")
    text, page = (output / "report.md").read_text(), (output / "report.html").read_text()
    assert "- zebra: 0.6000 (0.5000 to 0.7000)\n- &lt;b&gt;ant: 0.9000\n" in text
    assert "<li>zebra: 0.6000 (0.5000 to 0.7000)</li>" in page and "<b>" not in page
    assert "without images" not in text


def test_of_many_classes_the_lowest_are_listed(tmp_path: Path) -> None:
    classes = {f"class {number:03}": 1 - number / 1000 for number in range(100)}
    make_run(tmp_path / "runs" / "one", per_class_accuracy=classes)
    text = (write(tmp_path, tmp_path / "runs") / "report.md").read_text()
    assert text.count("- class ") == MAX_CLASSES and "- class 099: 0.9010\n" in text
    assert "- 80 more classes with higher accuracies" in text
