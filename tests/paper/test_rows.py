"""The rows of Tables 1 and 2."""

from ncelm.paper.rows import table1, table2


def test_the_rows_are_those_of_the_paper():
    one, two = table1(), table2()
    assert [row.paper for row in one if row.part == "paper"] == [163.5, 192.5, 172.6, 163.1, 159.1]
    uniform = [row for row in two if row.config.noise.name == "uniform"]
    assert [(row.config.loss.samples, row.paper) for row in uniform] == [
        (1, 291.0), (5, 233.7), (25, 195.1), (100, 173.2)
    ]  # fmt: skip
    for row in one + two:
        assert row.config.model.positions == 2
        assert row.config.model.dim == 100
        assert row.config.seed == 0
    assert len({row.key for row in one}) == len(one)


def test_tables_have_the_same_configuration_for_common_rows():
    configs = {row.key: row.config for row in table1()}
    common = [row for row in table2() if row.key in configs]
    assert len(common) == 4
    assert all(configs[row.key] == row.config for row in common)


def test_cost_grows_with_the_number_of_scored_words():
    costs = {row.key: row.cost for row in table1()}
    assert costs["nce-unigram-1"] < costs["nce-unigram-25"] < costs["nce-unigram-100"] < costs["ml"]
    assert costs["fast"] < costs["nce-unigram-25"]  # two epochs
