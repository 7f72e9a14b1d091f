"""What a run's folder holds besides its state."""

from hvdtrain.views.details import last_messages


def test_messages_of_all_ranks_are_in_the_order_of_time(tmp_path):
    (tmp_path / "logs").mkdir()
    lines = [
        "2026-05-01 14:03:1{0},000 {1} rank {2}\x1b[31m",
        "2026-05-01 14:03:1{3},000 WARNING w",
        "Traceback",
        "2026",
    ]
    for rank, times in enumerate([(3, 5), (2, 4)]):
        text = "\n".join(lines).format(times[0], "INFO", rank, times[1])
        (tmp_path / "logs" / f"rank-{rank}.log").write_text(text)
    messages = last_messages(tmp_path, 3)
    assert [(message.rank, message.time[-1]) for message in messages] == [(0, "3"), (1, "4"), (0, "5")]
    assert messages[0].text == "rank 0\\x1b[31m"
    assert sum(message.level == "WARNING" for message in last_messages(tmp_path, 10)) == 2
