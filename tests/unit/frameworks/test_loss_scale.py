from hvdtrain.frameworks.loss_scale import scale_of_rows


def test_scale_of_rows_is_the_number_of_ranks_rounded_up_to_a_power_of_two():
    assert [scale_of_rows(ranks) for ranks in (1, 2, 3, 4, 5, 8)] == [1, 2, 4, 4, 8, 8]
