"""`ncelm neighbors`."""


def test_neighbors(answer, output, folder):
    found = answer(["neighbors", folder / "run", "cat", "dog", "--count", "3"])
    assert [len(nearest) for nearest in found.values()] == [3, 3]
    assert output(["neighbors", folder / "run", "cat"]).startswith("cat: ")
    target = answer(["neighbors", folder / "run", "--table", "target", "--count", "3", "cat", "dog"])
    assert list(target) == ["cat", "dog"]
    assert target != found


def test_errors(fails, folder):
    fails(["neighbors", folder / "run", "zebra"], "'zebra'")
    fails(["neighbors", folder / "run"], "no word")
    fails(["neighbors", folder / "run", "cat", "--count", "0"], "--count is 0: give a whole number, at least 1")
