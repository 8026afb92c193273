"""`ncelm blend`; tests/models/test_ensemble.py has the weights and questions."""

import pytest


@pytest.fixture
def blend(monkeypatch):
    """A stub of the library: it returns the arguments and two weights for each run."""
    from types import SimpleNamespace

    import numpy as np

    def stub(runs, out, **options):
        record = {"percent": 50.0, "questions": 4, "parts_percent": [25.0] * len(runs), "options": str(options)}
        return SimpleNamespace(weights=np.full((len(runs), 2), 0.5)), record

    monkeypatch.setattr("ncelm.combine.blend", stub)


def test_output(blend, output, answer):
    lines = output(["blend", "a", "b", "--out", "c", "--split", "test"]).splitlines()
    assert lines[0] == " 25.0 %  a, weights 0.5000 0.5000"
    assert lines[2] == "c: 50.0 % correct of 4 questions generated from the test split, by cross-validation"
    result = answer(["blend", "a", "b", "--out", "c", "--seed", "3", "--threads", "1"])
    assert result["weights"] == [[0.5, 0.5], [0.5, 0.5]]
    assert result["options"] == "{'store': None, 'split': 'valid', 'seed': 3, 'threads': 1}"
