"""The sentences with which a report begins."""

import shutil

import pytest
from support.report import learning, make_run, report_of, rows, write


def sentences(tmp_path):
    return report_of(tmp_path / "runs").findings


def fastest(tmp_path):
    return [row["most_images_per_s"] for row in rows(tmp_path / "runs")]


def runs(tmp_path, name, speeds, **given):
    for number, speed in enumerate(speeds):
        make_run(tmp_path / "runs" / f"{name}-{number}", images_per_s=speed, seed=number, **given)


TWO = {"ranks": 2, "strategy": "horovod", "controller": "MPI", "cores": 2}


def test_the_fastest_row_is_compared_with_one_process(tmp_path, capsys, monkeypatch):
    runs(tmp_path, "one", [1000.0, 1010.0], moved=0.0)
    runs(tmp_path, "two", [1600.0, 1620.0], moved=9.1e-5, **TWO)
    runs(tmp_path, "ring", [1200.0, 1210.0], moved=0.0, ranks=2, strategy="ring")
    expected = [
        "PyTorch: horovod over MPI with 2 ranks on 2 cores is 1.60 times as fast as one process "
        "(1.58 to 1.62 over 2 runs).",
        "Parameters: those of the 2 rows that can be compared differ from a single process by at most 9.1e-05.",
        "All test accuracies are 0.9000.",
    ]
    assert sentences(tmp_path) == expected
    monkeypatch.setenv("COLUMNS", "200")
    output = write(tmp_path, tmp_path / "runs")
    assert " ".join(capsys.readouterr().out.split()).startswith(" ".join(expected))
    page, text = ((output / name).read_text() for name in ("report.html", "report.md"))
    assert "".join(f"<p>{one}</p>\n" for one in expected) in page.partition("<table")[0]
    assert text.startswith("# Runs of hvdtrain, compared\n\n" + "\n\n".join(expected))


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        ([1000.0, 1600.0], [1500.0, 1700.0], "(0.94 to 1.70 over 2 runs, so it may be chance)"),
        ([1000.0, 1010.0], [500.0, 510.0], "is 0.50 times as fast as one process (0.50 to 0.51"),
        ([1000.0], [1500.0], "is 1.50 times as fast as one process (too few runs to know the spread)."),
        ([1000.0, 1010.0], [1500.0], "is 1.49 times as fast as one process (too few runs to know the spread)."),
    ],
)
def test_a_difference_smaller_than_the_spread_is_none(tmp_path, one, two, expected):
    runs(tmp_path, "one", one)
    runs(tmp_path, "two", two, **TWO)
    found = sentences(tmp_path)[0]
    assert found.startswith("PyTorch: horovod over MPI with 2 ranks on 2 cores") and expected in found


def test_without_one_process_the_fastest_row_is_named(tmp_path):
    runs(tmp_path, "two", [1500.0, 1700.0], **TWO)
    name = "horovod over MPI with 2 ranks on 2 cores"
    for speeds, expected in (
        ([900.0], f"{name} has the most of 2 rows, 1,600 images/s, which may be chance."),
        ([900.0, 1550.0], f"{name} has the most of 2 rows, 1,600 images/s, which may be chance."),
        ([900.0, 950.0], f"{name} is the fastest of 2 rows, with 1,600 images/s."),
    ):
        runs(tmp_path, "ring", speeds, ranks=2, strategy="ring")
        assert sentences(tmp_path)[0] == f"PyTorch: {expected}"
        for path in tmp_path.glob("runs/ring-*"):
            shutil.rmtree(path)


def test_each_framework_data_set_and_machine_is_compared_by_itself(tmp_path):
    for number, framework in enumerate(("torch", "mxnet", "tensorflow")):
        runs(tmp_path, framework, [1000.0 + number], framework=framework)
        runs(tmp_path, f"{framework}-2", [1500.0 + number], framework=framework, ranks=2, strategy="ring")
    assert [one.partition(":")[0] for one in sentences(tmp_path)[:3]] == ["MXNet", "TensorFlow", "PyTorch"]
    assert fastest(tmp_path) == ["False", "True"] * 3
    for name, given in (("other", {"data": "mnist"}), ("faster", {"host": {"processor": "Xeon"}})):
        runs(tmp_path, name, [9000.0, 8000.0], **given)
        runs(tmp_path, f"{name}-2", [9500.0], ranks=2, strategy="ring", **given)
    titles = {group.title for group in report_of(tmp_path / "runs").groups}
    machines = ("digits, AMD EPYC", "mnist, AMD EPYC", "digits, Xeon")
    assert {f"PyTorch, data {one}, 4 cores" for one in machines} < titles
    assert fastest(tmp_path).count("True") == 5


def test_parameters_that_differ_are_no_agreement(tmp_path):
    runs(tmp_path, "one", [1000.0], moved=0.0)
    runs(tmp_path, "two", [1500.0], moved=0.25, **TWO)
    runs(tmp_path, "unknown", [1400.0], ranks=2, strategy="ddp")
    assert sentences(tmp_path)[1] == (
        "Parameters: those of torch horovod over MPI, 2 × 1 differ from a single process by at most 0.25."
    )
    runs(tmp_path, "ring", [1300.0], moved=0.0, ranks=2, strategy="ring")
    runs(tmp_path, "mpi", [1300.0], moved=1e-9, ranks=2, strategy="mpi")
    (tmp_path / "runs" / "two-0" / "result.json").unlink()
    assert sentences(tmp_path)[1] == (
        "Parameters: those of the 2 rows that can be compared differ from a single process by at most 1e-09."
    )


@pytest.mark.parametrize(
    ("one", "two", "test_rows", "expected"),
    [
        (
            [0.80],
            [0.81],
            1000,
            "0.8000 to 0.8100: none differs from the highest beyond chance in the test rows (95 %)",
        ),
        ([0.80], [0.83], 100_000, "highest, of torch ring, 2 × 1, is above 1 of the 1 others beyond chance (95 %)."),
        ([0.80, 0.82], [0.82, 0.84], 10**6, "0.8100 to 0.8300: none differs from the highest beyond"),
        ([0.80], [0.81], None, "0.8000 to 0.8100: the highest is that of torch ring, 2 × 1."),
    ],
    ids=["few test rows", "many test rows", "seeds differ as much", "unknown test rows"],
)
def test_accuracies_within_chance_do_not_differ(tmp_path, one, two, test_rows, expected):
    for name, accuracies, given in (("one", one, {}), ("two", two, {"ranks": 2, "strategy": "ring"})):
        for seed, accuracy in enumerate(accuracies):
            make_run(tmp_path / "runs" / f"{name}{seed}", accuracy=accuracy, test_rows=test_rows, seed=seed, **given)
    assert sentences(tmp_path)[-1].startswith("Test accurac") and expected in sentences(tmp_path)[-1]


def test_the_rank_that_others_wait_for_is_named(tmp_path):
    runs(tmp_path, "ring", [1000.0], ranks=4, strategy="ring", metrics=learning(ranks=4, slow=2))
    assert sentences(tmp_path)[-1] == (
        "Rank 2 of ring-0 takes 2.00 times as long as the median of the others, which wait for it."
    )


def test_ranks_that_were_lost_or_joined_are_counted(tmp_path):
    """`show` lists each change."""
    lost = {"ranks": [0], "hosts": ["a"], "lost": [{"rank": 1, "why": "was killed"}]}
    for number, change in enumerate((lost, {"ranks": [0, 1], "hosts": ["a", "b"], "joined": [1]})):
        first = {"kind": "members", "step": 0, "epoch": 0.0, "number": 1, "ranks": [[0, 1], [0]][number]}
        members = {"kind": "members", "step": 4, "epoch": 0.5, "number": 2, "seconds": 0.3, **change}
        runs(tmp_path, f"ring-{number}", [1000.0], ranks=2, strategy="ring", metrics=[first, members])
    assert "Ranks: in 2 runs, 1 rank lost, 1 rank joined." in sentences(tmp_path)
