"""Reports of runs of all kinds: content, escaping, damaged and incomplete runs."""

import json
import shutil
from importlib.resources import files
from pathlib import Path

import pytest
from tests.report.conftest import HOSTILE

import ncelm
from ncelm.errors import ArgumentError, ArgumentTypeError, NcelmError
from ncelm.io.files import write_json
from ncelm.report import page, report_data, write_report


def copied(run: Path, folder: Path) -> Path:
    return Path(shutil.copytree(run, folder / run.name))


def page_of(runs, **options):
    return page.render(report_data(runs, **options))


# -- kinds of runs ---------------------------------------------------------------------------------------------------


def test_a_neural_run(runs, parse):
    data = report_data(runs["neural"])["runs"][0]
    assert data["summary"].startswith(
        "Log-bilinear model (4 context words, 8 dimensions; loss nce) of 41,015 words (store)"
    )
    assert [record["epoch"] for record in data["epochs"]] == [1, 2, 3]
    records = [json.loads(line) for line in (runs["neural"] / "metrics.jsonl").read_text().splitlines()]
    best = min(records, key=lambda record: record["valid_perplexity"])
    assert data["valid_perplexity"] == records[-1]["best_valid_perplexity"]  # on the whole text
    assert data["test_perplexity"] == best["test_perplexity"]
    assert (data["log_z_mean"], data["log_z_std"]) == (best["valid_log_z_mean"], best["valid_log_z_std"])
    assert data["seconds"] == records[-1]["seconds"]
    changed = {setting["name"] for setting in data["settings"] if setting["changed"]}
    assert changed == {"dim", "epochs"}
    assert [setting["changed"] for setting in data["settings"]] == sorted(
        (setting["changed"] for setting in data["settings"]), reverse=True
    )
    assert data["notes"] == []
    found = parse(page_of(runs["neural"]))
    assert found.tags["svg"] >= 4
    for text in ("Validation perplexity by epoch", "Held-out sentences", "Next words", "Nearest words", "--dim",
                 "Generated sentences", "Most surprising words", "log Z"):  # fmt: skip
        assert text in found.text


def test_samples_are_those_of_the_model(runs, small_store):
    samples = report_data(runs["neural"])["runs"][0]["samples"]
    lm = ncelm.load(runs["neural"])
    assert samples["split"] == "test"
    for sentence in samples["sentences"]:
        words = [each["word"] for each in sentence["words"][:-1]]
        assert sentence["words"][-1]["word"] == "</s>"
        assert sentence["log_probability"] == pytest.approx(lm.score(ncelm.Tokens(words)))
        assert sentence["perplexity"] == pytest.approx(lm.perplexity(ncelm.Tokens(words)))
    for example in samples["next_words"]:
        best = lm.next_words(ncelm.Tokens(example["context"].split()), 6)
        assert [each["word"] for each in example["words"]] == [word for word, _ in best]
        assert 0 < example["actual"]["probability"] <= 1
        if example["actual"]["rank"] == 1:
            assert example["actual"]["word"] == best[0][0]
    lowest = [each["log_probability"] for each in samples["surprising"]]
    assert lowest == sorted(lowest)
    assert max(lowest) < -5
    assert len(samples["generated"]) == 4
    assert all(words and "<unk>" not in words for words in samples["generated"])
    for each in samples["neighbors"]:
        assert [near["word"] for near in each["neighbors"]] == [word for word, _ in lm.neighbors(each["word"], 8)]


def test_the_same_run_gives_the_same_samples(runs):
    first, second = (report_data(runs["neural"])["runs"] for _ in range(2))
    assert first == second


def test_an_ngram_run(runs, parse):
    data = report_data(runs["ngram"])["runs"][0]
    assert data["summary"].startswith("3-gram model of 41,015 words")
    orders = data["ngram"]["orders"]
    assert [order["min_count"] for order in orders] == [1, 1, 2]
    assert orders[0]["ngrams"] == 1531
    assert all(len(order["discounts"]) == 3 for order in orders)
    assert "settings" not in data
    found = parse(page_of(runs["ngram"]))
    assert "1,531" in found.text
    assert found.tags["svg"] == 0


def test_a_mixture(runs, parse):
    data = report_data(runs["mixture"])["runs"][0]
    assert data["summary"].startswith("Mixture of 2 models of")
    assert [each["name"] for each in data["components"]] == ["ngram", "neural"]
    assert sum(each["weight"] for each in data["components"]) == pytest.approx(1)
    assert data["components"][1]["run"]["epochs"]
    assert data["samples"]["neighbors"] == report_data(runs["neural"])["runs"][0]["samples"]["neighbors"]
    found = parse(page_of(runs["mixture"]))
    assert "Component neural" in found.text
    assert found.tags["svg"] >= 4


def test_runs_without_probabilities(runs, parse):
    lsa, pmi, ensemble = (report_data(runs[name])["runs"][0] for name in ("lsa", "pmi", "ensemble"))
    assert lsa["samples"]["neighbors"]
    assert pmi["samples"]["neighbors"] == []
    assert ensemble["learned_on"]["questions"] > 0
    assert [0 <= each["percent"] <= 100 for each in ensemble["components"]] == [True, True]
    assert "of generated questions correct" in ensemble["summary"]
    for name in ("lsa", "pmi", "ensemble"):
        parse(page_of(runs[name]))


def test_several_runs(runs, parse):
    content = page_of([runs["neural"], runs["other"], runs["mixture"]])
    found = parse(content)
    assert found.tags["h1"] == 1
    for text in ("Comparison of 3 runs", "Differences", "--loss", "neural", "other"):
        assert text in found.text
    assert 'class="swatch color1"' in content
    assert "different vocabularies" not in found.text


def test_runs_with_different_vocabularies(runs, hostile_run, parse):
    assert "different vocabularies" in parse(page_of([runs["neural"], hostile_run], samples=False)).text


@pytest.mark.parametrize("name", ["nce", "sgd", "importance"])
def test_runs_of_version_1(name, parse):
    run = Path(__file__).parents[1] / "fixtures" / "run_v1" / name
    data = report_data(run)["runs"][0]
    assert data["epochs"]
    assert data["settings"]
    parse(page_of(run))


# -- fit.json --------------------------------------------------------------------------------------------------------


FIT = {
    "command": "ncelm fit <text>",
    "explanation": ["  train: because of <this>"],
    "steps": {"prepare": {"seconds": 2.5, "compile_seconds": 0.0, "finished": True}},
    "seconds": 90.0,
    "compile_seconds": 12.0,
    "result": {
        "weights": {"ngram": 0.4, "neural": 0.6},
        "perplexity": {"valid": {"ngram": 80.5, "neural": 70.5, "mixture": 60.5}, "test": {"mixture": 61.5}},
        "gain_percent": 14.2,
        "scored_words": {"valid": 3000},
    },
    "unknown_key": {"a": [1, {"b": "<c>"}]},
}


def test_fit(runs, tmp_path, parse):
    run = copied(runs["mixture"], tmp_path)
    (run / "fit.json").write_text(json.dumps(FIT))
    data = report_data(run, samples=False)["runs"][0]
    assert (data["valid_perplexity"], data["test_perplexity"], data["seconds"]) == (60.5, 61.5, 90.0)
    found = parse(page_of(run, samples=False)).text
    for text in ("ncelm fit <text>", "train: because of <this>", "14.2 %", "1 min 30 s", "and 12.0 s of compilation",
                 "80.5", "unknown_key", "b: <c>", "result.scored_words", "valid: 3,000"):  # fmt: skip
        assert text in found


@pytest.mark.parametrize(
    "content",
    [{}, {"steps": [1], "result": {"weights": 3, "perplexity": [1]}, "explanation": "text", "seconds": "x"},
     {"result": {"perplexity": {"valid": {"mixture": None}}}, "a": [[[[[[[1]]]]]]], "steps": {"a": 1, "b": {}}}],
)  # fmt: skip
def test_unexpected_content_of_fit_is_tolerated(runs, tmp_path, parse, content):
    run = copied(runs["mixture"], tmp_path)
    (run / "fit.json").write_text(json.dumps(content))
    parse(page_of(run, samples=False))


def test_a_damaged_fit_is_one_error(runs, tmp_path):
    run = copied(runs["mixture"], tmp_path)
    for content in ("{", "[]", "[" * 100_000):
        (run / "fit.json").write_text(content)
        with pytest.raises(NcelmError, match=r"fit\.json is damaged"):
            report_data(run, samples=False)


# -- incomplete runs -------------------------------------------------------------------------------------------------


def set_metrics(run: Path, *records: dict) -> None:
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_fields_may_be_missing(runs, tmp_path, parse):
    run = copied(runs["neural"], tmp_path)
    set_metrics(run, {"epoch": 1, "loss": 4.0}, {"epoch": 2, "loss": None, "words_per_second": 10.0, "finished": True})
    data = report_data(run, samples=False)["runs"][0]
    assert "valid_perplexity" not in data
    parse(page_of(run, samples=False))
    set_metrics(run)
    assert "not finished" in parse(page_of(run, samples=False)).text
    (run / "metrics.jsonl").unlink()
    parse(page_of(run, samples=False))


def test_unexpected_numbers_are_tolerated(runs, tmp_path, parse):
    run = copied(runs["neural"], tmp_path)
    record = {
        "epoch": 1,
        "loss": 1e30,
        "valid_perplexity": 1e-300,
        "seconds": 10**400,
        "words_per_second": 0,
        "words": -1,
    }
    set_metrics(run, record, {**record, "epoch": 2, "valid_perplexity": 1e29, "loss": -1e30, "best_epoch": "x"})
    parse(page_of(run, samples=False))


def test_validation_time(runs, tmp_path, parse):
    run = copied(runs["neural"], tmp_path)
    first = {
        "epoch": 1,
        "loss": 4.0,
        "words": 700,
        "seconds": 60.0,
        "validation_seconds": 3.5,
        "valid_perplexity": 90.0,
    }
    last = {"epoch": 2, "loss": 3.0, "words": 350, "seconds": 70.0, "evaluation_seconds": 2.0, "finished": True}
    set_metrics(run, first, last | {"best_epoch": 1, "best_valid_perplexity": 91.4})
    text = parse(page_of(run, samples=False)).text
    assert "1 min 10 s" in text
    assert "and 5.5 s of validation" in text
    assert "alidation perplexity 91.4" in text
    assert report_data(run, samples=False)["runs"][0]["words_per_second"] == 15.0


def test_a_run_that_diverged(runs, tmp_path, parse):
    run = copied(runs["neural"], tmp_path)
    set_metrics(run, {"epoch": 1, "loss": 4.0}, {"epoch": 2, "step": 17, "diverged": "the <loss> is not finite"})
    (run / "model.safetensors").unlink()
    found = parse(page_of(run)).text
    assert "Training diverged in epoch 2, step 17: the <loss> is not finite." in found
    assert "no samples, because the model cannot be loaded" in found


def test_a_store_that_is_gone(hostile_run, tmp_path, parse):
    run = copied(hostile_run, tmp_path)
    content = json.loads((run / "config.json").read_text())
    content.pop("checksum")
    content["store"]["path"] = str(tmp_path / "gone")
    write_json(run / "config.json", content)
    # the parameters carry a digest of config.json, without the path of the store
    data = report_data(run)["runs"][0]
    assert "There are no held-out sentences: the token store is no longer at" in data["notes"][0]
    assert data["samples"]["generated"]
    assert "sentences" not in data["samples"]


def test_another_store(runs, hostile_run, small_store):
    assert report_data(runs["neural"], store=small_store)["runs"][0]["samples"]["sentences"]
    data = report_data(hostile_run, store=small_store)["runs"][0]
    assert "prepared with other settings" in data["notes"][0]


def test_a_mixture_whose_components_are_gone(runs, tmp_path, parse):
    run = copied(runs["mixture"], tmp_path)
    content = json.loads((run / "config.json").read_text())
    content.pop("checksum")
    content["parts"][0]["path"] = str(tmp_path / "gone")
    write_json(run / "config.json", content)
    found = parse(page_of(run)).text
    assert "The components cannot be described" in found


# -- the page --------------------------------------------------------------------------------------------------------


def test_words_are_escaped(hostile_run, parse):
    content = page_of(hostile_run)
    assert "<script" not in content
    assert "<img" not in content
    found = parse(content)
    assert "script" not in found.tags
    assert {name for name, _ in found.attributes if name.startswith("on")} == set()
    for word in HOSTILE:
        assert word in found.text
    assert "<b>&run" in found.text
    assert "(<i>store)" in found.text


def test_nothing_is_loaded(runs, parse):
    """No link, no script, no image; the page forbids them, too."""
    content = page_of([runs["neural"], runs["mixture"]])
    found = parse(content)
    assert not {"script", "link", "img", "iframe", "object"} & set(found.tags)
    assert not [name for name, _ in found.attributes if name in ("src", "href", "srcset", "style")]
    assert "url(" not in content
    assert "@import" not in content
    assert "default-src 'none'" in content
    assert "://" not in content


def test_charts_have_descriptions_and_tables_have_headers(runs, parse):
    content = page_of(runs["neural"])
    found = parse(content)
    assert content.count('role="img" aria-label="') == found.tags["svg"]
    assert found.tags["caption"] == found.tags["table"]
    assert found.tags["summary"] == found.tags["details"] > 0
    assert "All epochs" in found.text
    headings = [int(tag[1]) for tag in found.tags if tag in ("h1", "h2", "h3", "h4")]
    assert sorted(headings) == list(range(1, max(headings) + 1))  # no level is left out


def test_package_data():
    for name in ("template.html", "style.css"):
        assert files("ncelm.report").joinpath(name).is_file()


# -- write_report ----------------------------------------------------------------------------------------------------


def test_the_default_file(runs, tmp_path, monkeypatch):
    run = copied(runs["ngram"], tmp_path)
    assert write_report(run, samples=False) == run / "report.html"
    assert write_report([run, runs["lsa"]], tmp_path / "both.html", samples=False) == tmp_path / "both.html"
    assert ncelm.write_report(str(run), samples=False) == run / "report.html"  # replaces the former one
    monkeypatch.chdir(tmp_path)
    assert write_report([run, run], samples=False) == Path("report.html")
    ncelm.load(run)  # the report does not disturb


def test_a_file_of_another_kind_is_not_replaced(runs, tmp_path):
    (tmp_path / "notes.html").write_text("my notes")
    for existing in (tmp_path / "notes.html", tmp_path):
        with pytest.raises(NcelmError, match="exists already and is not a report"):
            write_report(runs["ngram"], existing)
    assert (tmp_path / "notes.html").read_text() == "my notes"


def test_wrong_arguments(runs, tmp_path):
    with pytest.raises(NcelmError, match="`runs` is empty"):
        write_report([])
    with pytest.raises(ArgumentTypeError, match="`runs` is 3"):
        write_report(3)
    with pytest.raises(ArgumentTypeError, match="`samples` is 1"):
        write_report(runs["ngram"], tmp_path / "a", samples=1)
    with pytest.raises(ArgumentTypeError, match="`store` is 1"):
        write_report(runs["ngram"], tmp_path / "a", store=1)
    with pytest.raises(ArgumentError, match="`threads` is 0"):
        write_report(runs["ngram"], tmp_path / "a", threads=0)
    with pytest.raises(NcelmError, match="there is no run at"):
        write_report(tmp_path / "absent", tmp_path / "a")
    assert not (tmp_path / "a").exists()
