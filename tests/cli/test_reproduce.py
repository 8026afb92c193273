"""`ncelm reproduce`, with stubs of the experiments; tests/paper has the tables."""

from types import SimpleNamespace

import pytest

from ncelm.cli.reproduce import _show_row
from ncelm.progress import TrainingBar, progress_bar


@pytest.fixture
def tables(monkeypatch):
    """Stubs that return rows; a list of the options of their calls."""
    calls = []

    def reproduce(table, data, out, **options):
        calls.append(options)
        runs = [{"diverged": {}}, {}]
        trained = {"name": "NCE", "test_perplexity": {"mean": 150.0, "std": 0.5}, "paper": 163.1, "runs": [{}, {}]}
        return {"rows": [trained, {"name": "IS", "test_perplexity": None, "paper": None, "runs": runs}]}

    def reproduce_table3(data, out, **options):
        calls.append(options)
        test = {"perplexity": 93.84}
        return {"rows": [{"name": "5-gram", "normalised": {"percent": 38.8}, "paper": {"percent": 38.7}, "test": test}]}

    monkeypatch.setattr("ncelm.paper.tables.reproduce", reproduce)
    monkeypatch.setattr("ncelm.paper.table3.reproduce_table3", reproduce_table3)
    return calls


def test_perplexities(tables, output):
    out = output(["reproduce", "table1", "--data", "ptb", "--out", "paper", "--rows", "a", "b", "--rows", "c"])
    assert out.splitlines() == [
        "NCE  150.0 ± 0.5   paper 163.1",
        "IS       –         1 of 2 diverged",
        "paper/table1.md has the whole table",
    ]
    (options,) = tables
    assert (options["rows"], options["seeds"], options["finished_only"]) == (["a", "b", "c"], 3, False)


def test_completion(tables, output, answer):
    arguments = ["reproduce", "table3", "--data", "data", "--out", "paper", "--finished-only"]
    assert output(arguments).startswith("5-gram  38.8 % correct   paper 38.7   test perplexity 93.8\n")
    assert answer(arguments)["rows"][0]["name"] == "5-gram"
    assert "seeds" not in tables[0]
    assert tables[0]["rows"] == ()


def test_progress_of_rows(capsys):
    training = SimpleNamespace(
        epoch=1, epochs=2, words=10, words_per_epoch=100, loss=5.0, words_per_second=100.0, metrics=None
    )
    at = {"number": 2, "runs": 9, "name": "NCE", "seconds_left": 90.0, "training": None, "steps": None}
    with progress_bar(unit=" words") as bar:
        display = TrainingBar(bar)
        _show_row(display, SimpleNamespace(**at))
        assert bar.desc == "2/9 NCE, about 2 min left in total: "
        _show_row(display, SimpleNamespace(**at | {"training": training}))
        assert (bar.n, bar.total, bar.unit) == (10, 200, " words")
        _show_row(display, SimpleNamespace(**at | {"steps": (3, 4)}))
        assert (bar.n, bar.total, bar.unit) == (3, 4, " steps")
