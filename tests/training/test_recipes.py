"""Recipes: every one trains, and the rows of the paper's tables are built from them."""

import pytest

from ncelm.errors import NcelmError
from ncelm.paper.rows import table1, table2
from ncelm.training.config import NCE, Halve, MaximumLikelihood, PowerNoise, Sgd
from ncelm.training.loop import train
from ncelm.training.recipes import RECIPES, holmes, recipe


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_trains(cycle_store, tmp_path, name):
    config = recipe(name).with_changes(epochs=1, dim=8)
    if config.backend == "torch":
        pytest.importorskip("torch", reason="needs the extra `torch`")
    assert train(cycle_store, tmp_path / "run", config)["finished"]


def test_unknown_recipes_are_errors():
    with pytest.raises(NcelmError, match="choose one of paper/ptb-nce"):
        recipe("nce")


def test_the_paper_s_settings():
    nce = recipe("ptb-nce")
    assert nce.loss == NCE(samples=25)
    assert nce.optimizer == Sgd()
    assert nce.schedule == Halve(epochs=50, patience=3, min_improvement=0.01)
    assert (nce.model.context, nce.model.dim, nce.batch_size) == (2, 100, 1000)
    assert recipe("ptb-ml").loss == MaximumLikelihood()
    assert holmes(dim=300).batch_size == 250
    assert holmes().noise == PowerNoise(0.75)


def test_every_recipe_has_one_line_of_documentation():
    for make in RECIPES.values():
        assert make.__doc__.splitlines()[0].endswith(".")


def test_rows_of_the_tables():
    rows = table1() + table2()
    assert len({row.key for row in table1()}) == len(table1())
    assert all(row.cost > 0 for row in rows)
    assert {row.config.loss.name for row in rows} == {"nce", "ml", "importance", "family"}
