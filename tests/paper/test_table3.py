"""Table 3: from an archive and a file of questions to a page, each row once, each row alone."""

import json

import pytest
from tests.helpers import GUTENBERG_HEADER, make_tar, two_topics

from ncelm import combine
from ncelm.errors import NcelmError
from ncelm.paper import table3
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


@pytest.fixture
def data(tmp_path, monkeypatch):
    def tiny(context, dim, after):
        config = TrainConfig().with_changes(epochs=2, batch_size=50, shared_noise=True, noise_samples=20)
        return config.with_changes(context=context, context_after=after, dim=dim, matrices="diagonal")

    def quick(path, **options):  # no English model of sentences is needed
        return prepare(path, **options | {"min_count": 1, "punkt": "train", "valid_sentences": 99, "test_sentences": 9})

    monkeypatch.setattr(table3, "ROWS", SMALL)
    monkeypatch.setattr(table3, "INIT_DIM", 6)
    monkeypatch.setattr(table3, "EXTENSIONS", EXTENSIONS)
    monkeypatch.setattr(table3, "ENSEMBLE", ("ngram-3", "lsa-300", "pmi", "lbl-2-100"))
    monkeypatch.setattr(combine, "SHORTEST", 4)  # sentences that questions are made from
    monkeypatch.setattr(table3, "holmes", tiny)
    monkeypatch.setattr(table3, "prepare", quick)
    works = {f"W{i}.TXT": (GUTENBERG_HEADER + ". \n\n".join(two_topics(i, 120))).encode() for i in range(3)}
    folder = tmp_path / "data"
    for name in ("holmes", "msrscc"):
        (folder / name).mkdir(parents=True)
    make_tar(folder / table3.ARCHIVE, works)
    header = "id,question,a),b),c),d),e)\n"
    (folder / table3.QUESTIONS).write_text(header + "1,the ship and the _____ .,oven,bread,sail,butter,knife\n")
    (folder / table3.ANSWERS).write_text("id,answer\n1,c\n")
    return folder


def test_the_rows_are_the_paper_s():
    assert [row.paper_percent for row in ROWS] == [
        36.0, 39.1, 38.7, 38.4, 49.0, 41.5, 45.1, 49.3, 50.0, 50.8, 52.8, 54.7, 44.5, 49.8
    ]  # fmt: skip
    assert len({row.key for row in ROWS}) == 14


def test_from_the_archive_to_the_page(data, tmp_path, capsys):
    from ncelm.cli.main import main

    arguments = ["reproduce", "table3", "--data", str(data), "--out", str(tmp_path / "out")]
    assert main([*arguments, "--rows", "lsa-300", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert [row["key"] for row in alone["rows"]] == ["lsa-300"]
    assert not alone["complete"]
    assert main(arguments) == 0
    assert "LBL, context 2×2, 6 dimensions" in capsys.readouterr().out
    answer = json.loads((tmp_path / "out/table3.json").read_text())
    assert answer["complete"]
    for row in answer["rows"]:
        assert row["normalised"]["percent"] in (0.0, 100.0)
        assert ("test" in row) == (row["key"] not in ("lsa-300", "pmi", "ensemble"))
        assert ("unnormalised" in row) <= row["key"].startswith("lbl")
        assert ("threads" in row) == row["key"].startswith("lbl")
    page = (tmp_path / "out/table3.md").read_text()
    assert "| 3-gram | **" in page
    assert "| 36.0 |" in page
    assert "| PMI of words in a sentence | **" in page
    assert "| ensemble: ngram-3, lsa-300, pmi, lbl-2-100 | **" in page


def test_every_kind_of_row_tells_how_far_it_is(data, tmp_path):
    heard = []
    reproduce_table3(data, tmp_path / "out", progress=heard.append)
    assert {at.name for at in heard if at.steps} == {"preparing the text", *(row.name for row in (*SMALL, *EXTENSIONS))}
    assert {at.name for at in heard if at.training} == {row.name for row in SMALL if row.kind == "LBL"}


def test_finished_rows_are_not_trained_again(data, tmp_path):
    reproduce_table3(data, tmp_path / "out", rows=["lbl-2-100"])
    outcome = tmp_path / "out/runs/lbl-2-100/outcome.json"
    changed = json.loads(outcome.read_text())
    changed["seconds"] = 12345.0
    outcome.write_text(json.dumps(changed))
    answer = reproduce_table3(data, tmp_path / "out", finished_only=True)
    assert [row["seconds"] for row in answer["rows"]] == [12345.0]
    outcome.unlink()  # training is finished, but nobody has asked it yet
    model = (tmp_path / "out/runs/lbl-2-100/model.safetensors").read_bytes()
    reproduce_table3(data, tmp_path / "out", rows=["lbl-2-100"])
    assert outcome.exists()
    assert (tmp_path / "out/runs/lbl-2-100/model.safetensors").read_bytes() == model


def test_mistakes(data, tmp_path):
    with pytest.raises(NcelmError, match="no row 'lbl-4-100'"):
        reproduce_table3(data, tmp_path / "out", rows=["lbl-4-100"])
    with pytest.raises(NcelmError, match="combines other rows: finish 'ngram-3' first"):
        reproduce_table3(data, tmp_path / "out", rows=["ensemble"])
    with pytest.raises(NcelmError, match="no row of table3 is finished"):
        reproduce_table3(data, tmp_path / "out", finished_only=True)
    (data / table3.ANSWERS).unlink()
    with pytest.raises(NcelmError, match=r"test_answer.csv is missing: --data is a folder with"):
        reproduce_table3(data, tmp_path / "out")


def test_a_store_of_another_text_is_refused(data, tmp_path):
    text = tmp_path / "text"
    text.write_text("a b c\n" * 30)
    prepare(train=text, out=tmp_path / "out/store")
    with pytest.raises(NcelmError, match="was not made from"):
        reproduce_table3(data, tmp_path / "out", rows=["lbl-2-100"])


def test_a_finished_row_of_another_recipe_is_refused(data, tmp_path, monkeypatch):
    reproduce_table3(data, tmp_path / "out", rows=["lbl-2-100"])
    former = table3.holmes
    monkeypatch.setattr(table3, "holmes", lambda *shape: former(*shape).with_changes(epochs=3))
    with pytest.raises(NcelmError, match="begun with --epochs 2, not 3"):
        reproduce_table3(data, tmp_path / "out", finished_only=True)
