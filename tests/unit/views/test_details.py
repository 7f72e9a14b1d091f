"""What a run's folder holds besides its state."""

from hvdtrain.views.details import Message, joined_messages, last_messages


def test_messages_of_all_ranks_are_in_the_order_of_time(tmp_path):
    (tmp_path / "logs").mkdir()
    said = "2026-05-01 14:03:1{0},000 INFO rank {1}\x1b[31m\n2026-05-01 14:03:1{2},000 WARNING w\nTraceback\n2026"
    for rank, (first, last) in enumerate([(3, 5), (2, 4)]):
        (tmp_path / "logs" / f"rank-{rank}.log").write_text(said.format(first, rank, last))
    messages = last_messages(tmp_path, 3)
    assert [(message.rank, message.time[-1]) for message in messages] == [(0, "3"), (1, "4"), (0, "5")]
    assert messages[0].text == "rank 0\\x1b[31m"
    assert sum(message.level == "WARNING" for message in last_messages(tmp_path, 10)) == 2


def test_after_rank_0_was_lost_the_next_rank_tells_how_training_goes():
    said = [
        ("14:03:11", 0, "epoch 1"), ("14:03:11", 1, "epoch 1, on rank 1"), ("14:05:20", 1, "epoch 2"),
        ("14:05:20", 2, "epoch 2, on rank 2"), ("14:07:01", 0, "epoch 3"), ("14:07:01", 1, "epoch 3"),
    ]  # fmt: skip
    messages = [Message(f"2026-05-01 {time}", rank, "INFO", text) for time, rank, text in said]
    assert [(one.message.rank, one.message.text) for one in joined_messages(messages)] == [
        (0, "epoch 1"), (1, "epoch 2"), (0, "epoch 3"),
    ]  # fmt: skip
