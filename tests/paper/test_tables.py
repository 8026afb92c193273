"""Reproducing a table: rows are trained once, what diverges is a result, and the page says what the metrics say."""

import json

import pytest

from ncelm.errors import NcelmError
from ncelm.language_model import LanguageModel
from ncelm.paper import plots
from ncelm.paper import tables as reproduce
from ncelm.paper.report import Result
from ncelm.paper.rows import Row, table1, table2
from ncelm.text.store import TokenStore
from ncelm.training.config import TrainConfig

TINY = TrainConfig().with_changes(
    optimizer="sgd", learning_rate=0.01, epochs=2, batch_size=50, noise_samples=3, dim=4
)
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
    Row("dropout", "dropout", TINY.with_changes(dropout=0.1), part="beyond"),
    Row("bigram", "bigram", TINY.with_changes(noise="bigram"), part="bigram"),
]


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce, "rows_of", lambda table: ROWS)
    folder = tmp_path / "ptb"
    folder.mkdir()
    for split, n in (("train", 60), ("valid", 10), ("test", 10)):
        (folder / f"ptb.{split}.txt").write_text("the cat sat on the mat\na dog <unk> the cat\n" * n)
    return folder


@pytest.mark.parametrize("table", ["table1", "table2"])
def test_all_rows_are_trained_and_written_down(data, tmp_path, table):
    seen = []
    answer = reproduce.reproduce(table, data, tmp_path / "out", seeds=2, progress=seen.append)
    by_key = {row["key"]: row for row in answer["rows"]}
    assert list(by_key) == [row.key for row in ROWS]
    nce = by_key["nce-unigram-25"]
    assert len(nce["test_perplexities"]) == 2
    assert nce["test_perplexity"]["mean"] == pytest.approx(sum(nce["test_perplexities"]) / 2)
    assert nce["test_perplexity"]["std"] > 0
    assert nce["update_speedup"] > 0
    assert nce["eq15_speedup"] == pytest.approx((16 + 10_000) / (16 + 3))
    assert by_key["learned"]["log_normalizers"]["contexts"] > 5
    assert all("diverged" in run for run in by_key["importance"]["runs"])
    assert by_key["importance"]["test_perplexity"] is None
    lm = LanguageModel.load(tmp_path / "out" / "runs" / "nce-unigram-25-seed1")
    test = lm.evaluate_split(TokenStore.open(tmp_path / "out" / "store"), "test")
    assert nce["test_perplexities"][1] == pytest.approx(test.perplexity)
    assert json.loads((tmp_path / "out" / f"{table}.json").read_text()) == answer
    page = (tmp_path / "out" / f"{table}.md").read_text()
    for words in ("163.1", "diverged in epoch 1", "learned (learned)", "dropout 0.1"):
        assert words in page, words
    assert len(answer["plots"]) == 4
    for name in answer["plots"]:
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")
        assert name in page
    assert {at.number for at in seen} == set(range(1, 15))
    assert all(at.runs == 14 for at in seen)
    assert seen[0].seconds_left is None
    assert seen[-1].seconds_left >= 0


def test_finished_rows_are_not_trained_again(data, tmp_path):
    reproduce.reproduce("table1", data, tmp_path / "out", seeds=1)
    metrics = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("runs/*/metrics.jsonl")}
    assert len(metrics) == len(ROWS)
    answer = reproduce.reproduce("table1", data, tmp_path / "out", seeds=2)
    assert all(path.stat().st_mtime_ns == then for path, then in metrics.items())
    assert answer["rows"][0]["seeds"] == [0, 1]


def test_some_rows_only(data, tmp_path):
    answer = reproduce.reproduce("table2", data, tmp_path / "out", seeds=1, rows=["uniform"])
    assert [row["key"] for row in answer["rows"]] == ["uniform"]
    assert "Not every row" in (tmp_path / "out" / "table2.md").read_text()


def test_what_is_finished_can_be_written_down_without_training(data, tmp_path):
    with pytest.raises(NcelmError, match="no row of table1 is finished"):
        reproduce.reproduce("table1", data, tmp_path / "out", finished_only=True)
    reproduce.reproduce("table1", data, tmp_path / "out", seeds=1, rows=["uniform", "importance"])
    answer = reproduce.reproduce("table1", data, tmp_path / "out", seeds=3, finished_only=True)
    assert [(row["key"], row["seeds"]) for row in answer["rows"]] == [("uniform", [0]), ("importance", [0])]
    assert answer["rows"][0]["test_perplexity"]["std"] is None
    assert not answer["complete"]
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 2


def test_without_matplotlib_there_are_no_plots_but_tables(data, tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "draw", lambda *a, **k: False)
    assert reproduce.reproduce("table1", data, tmp_path / "out", seeds=1)["plots"] == []
    assert "![" not in (tmp_path / "out" / "table1.md").read_text()


def test_mistakes_are_named(data, tmp_path):
    for arguments, words in (
        ({"data": tmp_path / "nowhere"}, "ptb.train.txt is missing"),
        ({"seeds": 0}, "--seeds is 0"),
        ({"rows": ["lstm"]}, "no row 'lstm': it has ml"),
    ):
        with pytest.raises(NcelmError, match=words):
            reproduce.reproduce("table1", **{"data": data, "out": tmp_path / "out", **arguments})
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_text_is_refused(data, tmp_path):
    reproduce.reproduce("table2", data, tmp_path / "out", seeds=1, rows=["uniform"])
    (data / "ptb.test.txt").write_text("another text\n")
    with pytest.raises(NcelmError, match=r"another text than .*ptb.test.txt"):
        reproduce.reproduce("table2", data, tmp_path / "out", seeds=1, rows=["uniform"])


def test_the_command(data, tmp_path, capsys):
    from ncelm.cli.main import main

    command = ["reproduce", "table1", "--data", str(data), "--out", str(tmp_path / "out"), "--seeds", "1"]
    assert main([*command, "--rows", "ml", "importance"]) == 0
    answer = capsys.readouterr().out
    assert "paper 163.5" in answer
    assert "1 of 1 diverged" in answer
    assert main([*command, "--rows", "ml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["key"] == "ml"
    assert main([*command, "--rows", "nothing"]) == 2


def test_time_to_a_perplexity_is_read_off_the_curve():
    lines = [{"seconds": 10.0 * n, "test_perplexity": p} for n, p in ((1, 400.0), (2, 200.0), (3, 100.0))]
    result = Result(ROWS[0], [0, 1], [lines, lines[:1]], [])
    assert result.time_to(200.0) == pytest.approx(20.0)
    assert result.time_to(200.0 / 2**0.5) == pytest.approx(25.0)
    assert result.time_to(500.0) == 10.0
    assert result.time_to(50.0) is None


def test_the_tables_have_the_papers_rows():
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
    shared = {row.key: row.config for row in one}
    assert all(shared[row.key] == row.config for row in two if row.key in shared)
    assert len({row.key for row in one}) == len(one)
