"""Tables 1 and 2: rows are trained once, divergence is a result, and the report agrees with the metrics."""

import json
from types import SimpleNamespace

import pytest
from safetensors.numpy import load_file

from ncelm.errors import NcelmError
from ncelm.io import array_files, run
from ncelm.language_model import LanguageModel
from ncelm.paper import plots, tables
from ncelm.paper.rows import Row
from ncelm.text.store import TokenStore
from ncelm.training.config import TrainConfig

# All rows but "importance" and "learned" use the same two compiled kernels, which other tests need too.
TINY = TrainConfig().with_changes(learning_rate=0.01, epochs=1, batch_size=50, noise_samples=3, dim=4)
ROWS = [
    Row("ml", "ML", TINY.with_changes(loss="ml"), 163.5, test_each_epoch=True),
    Row("nce-unigram-25", "NCE, k = 3", TINY, 163.1),
    Row("uniform", "uniform", TINY.with_changes(noise="uniform"), 195.1),
    Row("learned", "learned", TINY.with_changes(log_normalizers="learned"), part="log_normalizers"),
    Row(
        "importance",
        "IS",
        TINY.with_changes(loss="importance", learning_rate=1e5, batch_size=20),
        part="importance",
    ),
    Row("decay", "decay", TINY.with_changes(weight_decay=0.1), part="extensions"),
    Row("power", "power", TINY.with_changes(noise="power"), part="bigram"),
]


def write_texts(folder):
    folder.mkdir()
    for split, n in (("train", 60), ("valid", 10), ("test", 10)):
        (folder / f"ptb.{split}.txt").write_text("the cat sat on the mat\na dog <unk> the cat\n" * n)
    return folder


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    """All rows with two seeds, reported as both tables in the same directory."""
    folder, progress = tmp_path_factory.mktemp("reproduced"), []
    out = folder / "out"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(tables, "rows_of", lambda table: ROWS)
        data = write_texts(folder / "ptb")
        one = tables.reproduce("table1", data, out, seeds=2, progress=progress.append)
        metrics = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/metrics.jsonl")}
        two = tables.reproduce("table2", data, out, seeds=2)
    return SimpleNamespace(out=out, tables={"table1": one, "table2": two}, progress=progress, metrics=metrics)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Texts for tests that train a few rows; plots are not drawn."""
    monkeypatch.setattr(tables, "rows_of", lambda table: ROWS)
    monkeypatch.setattr(plots, "draw", lambda *a, **k: False)
    return write_texts(tmp_path / "ptb")


@pytest.mark.parametrize("table", ["table1", "table2"])
def test_all_rows_are_trained_and_reported(reproduced, table):
    report, out = reproduced.tables[table], reproduced.out
    by_key = {row["key"]: row for row in report["rows"]}
    assert list(by_key) == [row.key for row in ROWS]
    nce = by_key["nce-unigram-25"]
    assert len(nce["test_perplexities"]) == 2
    assert nce["test_perplexity"]["mean"] == pytest.approx(sum(nce["test_perplexities"]) / 2)
    assert nce["test_perplexity"]["std"] > 0
    assert nce["update_speedup"] > 0
    assert nce["eq15_speedup"] == pytest.approx((16 + 10_000) / (16 + 3))
    assert by_key["learned"]["log_normalizers"]["contexts"] > 5
    assert by_key["learned"]["log_normalizers"]["std"] > 0
    assert all("diverged" in run for run in by_key["importance"]["runs"])
    assert by_key["importance"]["test_perplexity"] is None
    lm = LanguageModel.load(out / "runs" / "nce-unigram-25-seed1")
    test = lm.evaluate_split(TokenStore.open(out / "store"), "test")
    assert nce["test_perplexities"][1] == pytest.approx(test.perplexity)
    assert json.loads((out / f"{table}.json").read_text()) == report
    page = (out / f"{table}.md").read_text()
    for words in ("163.1", "diverged in epoch 1", "learned (learned)", "weight_decay 0.1"):
        assert words in page, words
    assert len(report["plots"]) == 4
    for name in report["plots"]:
        assert (out / name).read_bytes().startswith(b"\x89PNG")
        assert name in page


def test_progress_of_all_runs_is_reported(reproduced):
    progress = reproduced.progress
    assert {at.number for at in progress} == set(range(1, 15))
    assert all(at.runs == 14 for at in progress)
    assert progress[0].seconds_left is None
    assert progress[-1].seconds_left >= 0


def test_tables_share_rows(reproduced):
    assert len(reproduced.metrics) == 2 * len(ROWS)
    assert all(path.stat().st_mtime_ns == then for path, then in reproduced.metrics.items())


def test_finished_runs_are_not_trained_again(data, tmp_path):
    rows = ["uniform", "importance"]
    tables.reproduce("table1", data, tmp_path / "out", seeds=1, rows=rows)
    metrics = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("runs/*/metrics.jsonl")}
    assert len(metrics) == 2
    report = tables.reproduce("table1", data, tmp_path / "out", seeds=2, rows=rows)
    assert all(path.stat().st_mtime_ns == then for path, then in metrics.items())
    assert report["rows"][0]["seeds"] == [0, 1]


def test_selected_rows(data, tmp_path):
    report = tables.reproduce("table2", data, tmp_path / "out", seeds=1, rows=["uniform"])
    assert [row["key"] for row in report["rows"]] == ["uniform"]
    assert "Not every row" in (tmp_path / "out" / "table2.md").read_text()


def test_finished_rows_are_reported_without_training(data, tmp_path):
    with pytest.raises(NcelmError, match="no row of table1 is finished"):
        tables.reproduce("table1", data, tmp_path / "out", finished_only=True)
    tables.reproduce("table1", data, tmp_path / "out", seeds=1, rows=["uniform", "importance"])
    report = tables.reproduce("table1", data, tmp_path / "out", seeds=3, finished_only=True)
    assert [(row["key"], row["seeds"]) for row in report["rows"]] == [("uniform", [0]), ("importance", [0])]
    assert report["rows"][0]["test_perplexity"]["std"] is None
    assert not report["complete"]
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 2


def test_without_matplotlib_there_are_tables_but_no_plots(data, tmp_path):
    report = tables.reproduce("table1", data, tmp_path / "out", seeds=1, rows=["uniform"])
    assert report["plots"] == []
    assert "![" not in (tmp_path / "out" / "table1.md").read_text()


def test_metrics_of_earlier_versions_are_reported(data, tmp_path):
    """Runs of format version 1 have other names for some fields."""
    tables.reproduce("table1", data, tmp_path / "out", seeds=1, rows=["learned", "importance"])
    for row in ("learned", "importance"):
        path = tmp_path / f"out/runs/{row}-seed0/metrics.jsonl"
        lines = []
        for text in path.read_text().splitlines():
            line = json.loads(text)
            for new, old in (("log_normalizers_mean", "constants_mean"), ("log_normalizers_std", "constants_std")):
                if new in line:
                    line[old] = line.pop(new)
            if "weights" in line:
                line["weights"] = [list(summary.values()) for summary in line["weights"]]
            lines.append(json.dumps(line).ljust(len(text)) + "\n")  # a checkpoint has the size of the file
        path.write_text("".join(lines))
        checkpoint = path.with_name(run.CHECKPOINT)
        if checkpoint.exists():  # a run that diverges in its first epoch has none
            header = array_files.read_header(checkpoint)
            header["state"]["metrics_sha256"] = ""  # absent in earlier versions
            content = {key: header[key] for key in ("checkpoint", "state")}
            array_files.write_arrays(checkpoint, load_file(checkpoint), content)
    report = tables.reproduce("table1", data, tmp_path / "out", seeds=1, finished_only=True)
    assert report["rows"][0]["log_normalizers"]["contexts"] > 5


def test_invalid_arguments(data, tmp_path):
    for arguments, words in (
        ({"data": tmp_path / "nowhere"}, "ptb.train.txt is missing"),
        ({"seeds": 0}, "`seeds` is 0"),
        ({"rows": ["lstm"]}, "no row 'lstm': it has ml"),
    ):
        with pytest.raises(NcelmError, match=words):
            tables.reproduce("table1", **{"data": data, "out": tmp_path / "out", **arguments})
    assert not (tmp_path / "out").exists()


def test_a_directory_of_another_text_is_rejected(data, tmp_path):
    tables.reproduce("table2", data, tmp_path / "out", seeds=1, rows=["uniform"])
    (data / "ptb.test.txt").write_text("another text\n")
    with pytest.raises(NcelmError, match=r"another text than .*ptb.test.txt"):
        tables.reproduce("table2", data, tmp_path / "out", seeds=1, rows=["uniform"])


def test_command(data, tmp_path, capsys):
    from ncelm.cli.main import main

    command = ["reproduce", "table1", "--data", str(data), "--out", str(tmp_path / "out"), "--seeds", "1"]
    assert main([*command, "--rows", "ml", "importance"]) == 0
    output = capsys.readouterr().out
    assert "paper 163.5" in output
    assert "1 of 1 diverged" in output
    assert main([*command, "--rows", "ml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["key"] == "ml"
    assert main([*command, "--rows", "nothing"]) == 2
