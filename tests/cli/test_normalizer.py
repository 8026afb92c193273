"""`ncelm normalizer`, and `ncelm score --mode fast`, which needs it."""

import shutil

import pytest


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    """A run that this file may change."""
    return shutil.copytree(folder / "run", tmp_path_factory.mktemp("normalizer") / "run")


def test_fit_and_score(answer, output, fails, folder, run):
    lines = folder / "text"
    fails(["score", run, lines, "--mode", "fast"], "has no normalizer for its parameters", "ncelm normalizer RUN")
    fitted = answer(["normalizer", run, "--units", "6", "--contexts", "1000"])
    assert (fitted["run"], fitted["units"]) == (str(run), 6)
    assert fitted["error"]["contexts"] == 10_000
    assert 0.0 < fitted["error"]["std"] < 0.5
    exact, fast, bare = (
        [float(line) for line in output(["score", run, lines, "--mode", mode]).splitlines()]
        for mode in ("exact", "fast", "unnormalised")
    )
    assert exact == [float(line) for line in output(["score", run, lines]).splitlines()]
    assert bare == [float(line) for line in output(["score", run, lines, "--unnormalised"]).splitlines()]
    assert len({tuple(exact), tuple(fast), tuple(bare)}) == 3
    assert fast == pytest.approx(exact, abs=7 * 6 * fitted["error"]["std"])
    shown = output(["normalizer", run, "--file", lines, "--units", "6", "--contexts", "1000"])
    assert "normalizer with 6 units; error of fast scores " in shown
    assert "nats per word (10,000 held-out contexts)" in shown


@pytest.mark.parametrize("mode", ["exact", "fast", "unnormalised"])
@pytest.mark.parametrize("threads", [1, 2])
def test_shards(output, folder, tmp_path_factory, mode, threads):
    """The same bytes for any division of a file, any number of threads, and one line at a time."""
    path = tmp_path_factory.mktemp("shards")
    run = shutil.copytree(folder / "run", path / "run")
    output(["normalizer", run, "--units", "6", "--contexts", "1000"])
    text = path / "text"
    lines = ["the cat sat", "", "a dog and a log", "zebra", "the the the the the the mat"] * 25
    text.write_text("\n".join(lines) + "\n")
    options = ["--mode", mode, "--threads", threads, "--json"]
    whole = output(["score", run, text, *options])
    for shards in (2, 3, 7):
        parts = [output(["score", run, text, *options, "--shard", f"{i}/{shards}"]) for i in range(1, shards + 1)]
        assert "".join(parts) == whole
    for line, result in list(zip(lines, whole.splitlines(), strict=True))[:5]:
        text.write_text(line + "\n")
        assert output(["score", run, text, *options]).splitlines() == [result]


def test_errors(fails, folder, run, tmp_path):
    fails(["normalizer", run, "--file", folder / "text", "--store", folder / "store"], "either --file or --store")
    fails(["normalizer", run, "--file", tmp_path / "none"], "there is no file")
    fails(["normalizer", run, "--units", "0"], "--units is 0")
    fails(["normalizer", run, "--contexts", "0"], "--contexts is 0")
    fails(["normalizer", run, "--seed", "-1"], "--seed is -1")
    fails(["normalizer", run, "--store", tmp_path / "none"], "no token store at")
    fails(["normalizer", folder / "store"], "run")
    fails(["score", run, folder / "text", "--mode", "quick"], "--mode", "'exact', 'fast'")
    fails(["score", run, folder / "text", "--mode", "fast", "--unnormalised"], "--mode", "--unnormalised")
