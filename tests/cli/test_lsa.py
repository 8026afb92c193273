"""`ncelm lsa` and `ncelm pmi`; tests/models has their use in `complete` and `blend`."""


def test_lsa(answer, output, fails, folder, tmp_path):
    run = tmp_path / "lsa"
    assert answer(["lsa", "train", folder / "store", "--out", run, "--dim", "3"])["dim"] == 3
    assert len(answer(["neighbors", run, "cat", "--count", "2"])["cat"]) == 2
    assert "vectors of 3 dimensions" in output(["export", run, tmp_path / "vectors"])
    for command in ("evaluate", "score"):
        fails([command, run], "lsa is a model of kind lsa, which has no probabilities")


def test_pmi(output, folder, tmp_path):
    assert "words in 120 sentences" in output(["pmi", "train", folder / "store", "--out", tmp_path / "pmi"])


def test_errors(fails, folder, tmp_path):
    fails(["lsa", "train", folder / "store", "--out", tmp_path / "x", "--dim", "0"], "--dim is 0")
    fails(["lsa", "train", folder / "store", "--out", tmp_path / "x", "--seed", "-1"], "--seed is -1")
    assert list(tmp_path.iterdir()) == []
