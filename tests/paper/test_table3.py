"""Table 3: from an archive of works and a file of questions to the report; every row is trained once."""

import json
import shutil
from types import SimpleNamespace

import pytest
from tests.helpers import GUTENBERG_HEADER, change_json, make_tar, two_topics

from ncelm.errors import NcelmError
from ncelm.models import questions
from ncelm.paper import plots, table3
from ncelm.paper.table3 import ROWS, Row, reproduce_table3
from ncelm.text.prepare import prepare
from ncelm.training.config import TrainConfig

SMALL = [
    Row("ngram-3", "n-gram", 2, 0, None, 36.0, 130.8),
    Row("lsa-300", "LSA", 0, 0, 6, 49.0, None),
    Row("lbl-2-100", "LBL", 2, 0, 6, 41.5, 145.5),
    Row("lbl-10x2-100", "LBL", 2, 2, 6, 44.5, 38.6),
]
EXTENSIONS = [Row("pmi", "PMI", 0, 0, None, None, None), Row("ensemble", "ensemble", 0, 0, None, None, None)]


def tiny(context, dim, after):
    config = TrainConfig().with_changes(epochs=1, batch_size=50, shared_noise=True, noise_samples=20)
    return config.with_changes(context=context, context_after=after, dim=dim, matrices="diagonal")


def prepare_quickly(path, **options):
    """Prepare without the English sentence model, which may not be installed."""
    changes = {"min_count": 1, "punkt": "train", "valid_sentences": 99, "test_sentences": 9}
    return prepare(path, **options | changes)


def use_small_rows(monkeypatch):
    monkeypatch.setattr(table3, "ROWS", SMALL)
    monkeypatch.setattr(table3, "INIT_DIM", 6)
    monkeypatch.setattr(table3, "EXTENSIONS", EXTENSIONS)
    monkeypatch.setattr(table3, "ENSEMBLE", ("ngram-3", "lsa-300", "pmi", "lbl-2-100"))
    monkeypatch.setattr(questions, "MIN_WORDS", 4)  # of sentences from which questions are generated
    monkeypatch.setattr(table3, "holmes", tiny)
    monkeypatch.setattr(table3, "prepare", prepare_quickly)


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """All rows, after a first call that trained one row."""
    folder, progress = tmp_path_factory.mktemp("table3"), []
    data, out = folder / "data", folder / "out"
    works = {f"W{i}.TXT": (GUTENBERG_HEADER + ". \n\n".join(two_topics(i, 120))).encode() for i in range(3)}
    for name in ("holmes", "msrscc"):
        (data / name).mkdir(parents=True)
    make_tar(data / table3.ARCHIVE, works)
    header = "id,question,a),b),c),d),e)\n"
    (data / table3.QUESTIONS).write_text(header + "1,the ship and the _____ .,oven,bread,sail,butter,knife\n")
    (data / table3.ANSWERS).write_text("id,answer\n1,c\n")
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_small_rows(monkeypatch)
        first = reproduce_table3(data, out, rows=["lsa-300"], progress=progress.append)
        report = reproduce_table3(data, out, progress=progress.append)
        names = {row.key: row.name for row in (*SMALL, *EXTENSIONS)}
    return SimpleNamespace(data=data, out=out, first=first, report=report, progress=progress, names=names)


@pytest.fixture
def restored(complete, tmp_path, monkeypatch):
    """The complete reproduction, restored after a test that changes it; plots are not drawn."""
    use_small_rows(monkeypatch)
    monkeypatch.setattr(plots, "draw", lambda *a, **k: False)
    # runs refer to the vectors that they were initialized with by absolute paths, so that a copy cannot be resumed
    for path in (complete.data, complete.out):
        shutil.copytree(path, tmp_path / path.name)
    yield complete
    for path in (complete.data, complete.out):
        shutil.rmtree(path)
        shutil.copytree(tmp_path / path.name, path)


def test_the_rows_are_those_of_the_paper():
    assert [row.paper_percent for row in ROWS] == [
        36.0, 39.1, 38.7, 38.4, 49.0, 41.5, 45.1, 49.3, 50.0, 50.8, 52.8, 54.7, 44.5, 49.8
    ]  # fmt: skip
    assert len({row.key for row in ROWS}) == 14


def test_one_row_alone(complete):
    assert [row["key"] for row in complete.first["rows"]] == ["lsa-300"]
    assert not complete.first["complete"]


def test_from_the_archive_to_the_report(complete):
    report = json.loads((complete.out / "table3.json").read_text())
    assert report == json.loads(json.dumps(complete.report))
    assert report["complete"]
    for row in report["rows"]:
        assert row["normalised"]["percent"] in (0.0, 100.0)
        assert ("test" in row) == (row["key"] not in ("lsa-300", "pmi", "ensemble"))
        assert ("unnormalised" in row) <= row["key"].startswith("lbl")
        assert ("threads" in row) == row["key"].startswith("lbl")
    page = (complete.out / "table3.md").read_text()
    assert "| 3-gram | **" in page
    assert "| 36.0 |" in page
    assert "| PMI of words in a sentence | **" in page
    assert "| ensemble: ngram-3, lsa-300, pmi, lbl-2-100 | **" in page
    assert (complete.out / "table3-accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_progress_of_all_kinds_of_rows_is_reported(complete):
    assert {at.name for at in complete.progress if at.steps} == {"preparing the text", *complete.names.values()}
    assert {at.name for at in complete.progress if at.training} == {row.name for row in SMALL if row.kind == "LBL"}


def test_finished_rows_are_not_trained_again(restored):
    outcome = restored.out / "runs/lbl-2-100/outcome.json"
    change_json(outcome, {"seconds": 12345.0})
    report = reproduce_table3(restored.data, restored.out, rows=["lbl-2-100"], finished_only=True)
    assert [row["seconds"] for row in report["rows"]] == [12345.0]
    outcome.unlink()  # trained, but not evaluated
    model = (restored.out / "runs/lbl-2-100/model.safetensors").read_bytes()
    reproduce_table3(restored.data, restored.out, rows=["lbl-2-100"])
    assert outcome.exists()
    assert (restored.out / "runs/lbl-2-100/model.safetensors").read_bytes() == model


def test_invalid_arguments(restored):
    with pytest.raises(NcelmError, match="no row 'lbl-4-100'"):
        reproduce_table3(restored.data, restored.out, rows=["lbl-4-100"])
    shutil.rmtree(restored.out / "runs")
    with pytest.raises(NcelmError, match="combines other rows: finish 'ngram-3' first"):
        reproduce_table3(restored.data, restored.out, rows=["ensemble"])
    with pytest.raises(NcelmError, match="no row of table3 is finished"):
        reproduce_table3(restored.data, restored.out, finished_only=True)
    (restored.data / table3.ANSWERS).unlink()
    with pytest.raises(NcelmError, match=r"test_answer.csv is missing: `data` is a directory with"):
        reproduce_table3(restored.data, restored.out)


def test_a_store_of_another_text_is_rejected(restored, tmp_path):
    text = tmp_path / "text"
    text.write_text("a b c\n" * 30)
    prepare(train=text, out=tmp_path / "other/store")
    with pytest.raises(NcelmError, match="was not made from"):
        reproduce_table3(restored.data, tmp_path / "other", rows=["lbl-2-100"])


def test_a_finished_row_of_another_recipe_is_rejected(restored, monkeypatch):
    monkeypatch.setattr(table3, "holmes", lambda *shape: tiny(*shape).with_changes(epochs=3))
    with pytest.raises(NcelmError, match="was started with `epochs` 1, not 3"):
        reproduce_table3(restored.data, restored.out, rows=["lbl-2-100"], finished_only=True)


def test_command(restored, capsys):
    from ncelm.cli.main import main

    arguments = ["reproduce", "table3", "--data", str(restored.data), "--out", str(restored.out)]
    assert main([*arguments, "--rows", "lsa-300", "--json"]) == 0
    assert [row["key"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["lsa-300"]
    assert main([*arguments, "--finished-only"]) == 0
    assert "LBL, context 2×2, 6 dimensions" in capsys.readouterr().out
