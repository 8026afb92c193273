"""`ncelm.fit`: stages, choices, interruptions, a folder that can be moved, the division of time."""

import json
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.helpers import PROSE, change_json, random_lines

import ncelm
from ncelm.errors import ArgumentError, ArgumentTypeError, NcelmError
from ncelm.fitting import budget
from ncelm.fitting import fit as fitting
from ncelm.fitting.budget import HeldOut
from ncelm.fitting.state import STAGES, State
from ncelm.io import run
from ncelm.text import tokenize_files
from ncelm.text.store import read_settings

LINES = random_lines(0, 400, 12)
FILES = (
    "config.json", "vocab.txt", "neural/config.json", "neural/model.safetensors", "ngram/config.json",
    "ngram/model.safetensors", "store/train.ids", "store/valid.ids", "store/test.ids",
)  # fmt: skip


def fitted(out: Path, **options):
    return ncelm.fit(**{"train_lines": LINES, "out": out, "progress": False, "threads": 1} | options)


def contents(model: Path) -> dict[str, bytes]:
    return {name: (model / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of tokenized lines. Tests must not change it."""
    out = tmp_path_factory.mktemp("fit") / "model"
    fitted(out)
    return out


@pytest.fixture
def copy(model, tmp_path):
    """A copy of the model in another place."""
    return Path(shutil.copytree(model, tmp_path / "elsewhere" / "copy"))


# -- the result ------------------------------------------------------------------------------------------------------


def test_a_mixture_with_its_results(model):
    state = State.read(model)
    assert all(map(state.is_finished, STAGES))
    assert list(state.explanation)[:4] == ["text", "n-gram model", "neural model", "mixture"]
    assert "less than 2 times" in state.explanation["text"]
    result = state.result
    assert sum(result["weights"].values()) == pytest.approx(1)
    valid, test = result["perplexity"]["valid"], result["perplexity"]["test"]
    assert valid["mixture"] < 1.0001 * min(valid["neural"], valid["ngram"])
    assert result["gain_percent"] == pytest.approx(100 * (1 - test["mixture"] / min(test["neural"], test["ngram"])))
    lm = ncelm.load(model)
    for name, folder in (("mixture", model), ("neural", model / "neural"), ("ngram", model / "ngram")):
        assert ncelm.load(folder).evaluate_split(lm.store_path, "test").perplexity == pytest.approx(test[name])
    assert result["scored_words"] == {name: lm_words(model, name) for name in ("valid", "test")}


def lm_words(model, split):
    return ncelm.TokenStore.open(model / "store").split(split).tokens


def test_the_report_has_weights_perplexities_and_gain(model):
    page, result = (model / "report.html").read_text(), State.read(model).result
    for weight in result["weights"].values():
        assert f"{weight:.3f}" in page
    for split in ("valid", "test"):
        for value in result["perplexity"][split].values():
            assert f"{value:,.1f}" in page
    assert "gain of the mixture" in page
    assert f"{result['gain_percent']:.1f} %" in page
    assert "n-gram model: order 5" in page


def test_no_file_has_an_absolute_path(model):
    for file in model.rglob("*.json"):
        assert str(model) not in file.read_text()
    assert json.loads((model / "config.json").read_text())["store"]["path"] == "store"
    assert json.loads((model / "neural" / "config.json").read_text())["store"]["path"] == "../store"


def test_a_moved_folder_is_complete(model, copy, monkeypatch):
    monkeypatch.setattr(fitting, "MEASURED_WORDS", 10)
    lm = ncelm.load(copy)
    assert lm.store_path == (copy / "store").resolve()
    assert lm.score("w1 w2") == ncelm.load(model).score("w1 w2")
    assert ncelm.load(copy / "neural").store_path == lm.store_path
    fitted(copy, resume=True)
    ncelm.train(lm.store_path, copy / "neural", resume=True, progress=False)
    monkeypatch.chdir(copy.parent)
    assert ncelm.load("copy").evaluate_split("copy/store", "test").tokens == lm_words(copy, "test")
    assert ncelm.write_report("copy", samples=False) == Path("copy/report.html")
    mixed = ncelm.mix(["copy/neural", "copy/ngram"], "copy/again", progress=False)
    assert mixed.score("w1") == pytest.approx(lm.score("w1"))
    assert json.loads(Path("copy/again/config.json").read_text())["parts"][0]["path"] == "../neural"


def test_vectors_are_those_of_the_neural_component(model):
    lm, neural = ncelm.load(model), ncelm.load(model / "neural")
    assert np.array_equal(lm.vectors("target"), neural.vectors("target"))
    assert lm.neighbors("w1", 3) == neural.neighbors("w1", 3)


def test_prose_is_converted_to_lower_case(tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "_english_is_installed", lambda: False)
    lm = ncelm.fit(texts=[PROSE], out=tmp_path / "model", progress=False)
    assert lm.text.lowercase
    text = State.read(tmp_path / "model").explanation["text"]
    assert "lower case" in text
    assert "Punkt, trained on it" in text
    lm = ncelm.fit(texts=[PROSE], out=tmp_path / "cased", lowercase=False, punkt="train", progress=False)
    assert "Smith" in lm.vocabulary


def test_a_store(cycle_store, tmp_path):
    stages = []
    ncelm.fit(cycle_store, tmp_path / "a", progress=stages.append)
    assert [(stage.name, stage.seconds_left) for stage in stages] == [(name, None) for name in STAGES]
    assert ncelm.TokenStore.open(tmp_path / "a" / "store").fingerprint == cycle_store.fingerprint
    ncelm.fit([cycle_store.path], tmp_path / "b", progress=False)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    with pytest.raises(NcelmError, match=r"`lowercase` is for text, and .* is a token store"):
        ncelm.fit(cycle_store, tmp_path / "c", lowercase=True)


def test_without_test_text_the_validation_text_counts(tmp_path):
    fitted(tmp_path / "model", test_sentences=0)
    state = State.read(tmp_path / "model")
    assert "test" not in state.result["perplexity"]
    assert state.explanation["result"].startswith("validation perplexity on ")


def test_short_sentences_have_a_lower_order(tmp_path):
    fitted(tmp_path / "model", train_lines=["a b", "b a", "a a"] * 40, boundary="sentence")
    assert State.read(tmp_path / "model").explanation["n-gram model"].startswith("order 4")


def test_a_seed_is_that_of_sentences_and_of_training(tmp_path, model):
    fitted(tmp_path / "model", seed=3)
    config = json.loads((tmp_path / "model" / "neural" / "config.json").read_text())
    assert config["config"]["seed"] == 3
    assert contents(tmp_path / "model")["store/valid.ids"] != contents(model)["store/valid.ids"]


def test_progress_in_a_log(tmp_path, capsys):
    fitted(tmp_path / "model", progress=True, minutes=0.1)
    errors = capsys.readouterr().err
    assert "ncelm: [1/6] preparing the text, 0:06 left\n" in errors
    assert re.search(r"ncelm: \[6/6\] writing the report, 0:0\d left\n", errors)
    for topic in ("text", "n-gram model", "neural model", "mixture", "result"):
        assert f"ncelm: {topic}: " in errors


def test_a_mixture_that_does_not_help_is_a_note(tmp_path, monkeypatch):
    monkeypatch.setattr("ncelm.models.mixture.learn_weights", lambda logs: np.array([1.0, 0.0]))
    fitted(tmp_path / "model")
    assert "not better than neural alone" in State.read(tmp_path / "model").explanation["note"]


# -- interruptions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("stage", STAGES)
def test_an_interrupted_fit_has_the_same_result(model, tmp_path, monkeypatch, stage, late):
    out, work = tmp_path / "model", getattr(fitting._Fit, f"_{stage}")

    def interrupted(self):
        if late:
            work(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fitting._Fit, f"_{stage}", interrupted)
        with pytest.raises(KeyboardInterrupt) as caught:
            fitted(out)
    if stage == "prepare" and not late:
        assert not out.exists()
    else:
        assert str(caught.value) == f"stopped by Ctrl-C; finished stages are in {out}: continue with `resume`"
        assert not State.read(out).is_finished(stage)
    fitted(out, resume=True)
    assert contents(out) == contents(model)
    assert all(map(State.read(out).is_finished, STAGES))


def test_training_continues_from_its_checkpoint(model, tmp_path, monkeypatch):
    out, epochs = tmp_path / "model", []

    def train(*arguments, **options):
        def stop(at):
            if at.metrics and at.epoch == 2:
                signal.raise_signal(signal.SIGINT)

        return ncelm.train(*arguments, **options | {"progress": stop})

    with monkeypatch.context() as patch:
        patch.setattr(fitting, "train", train)
        with pytest.raises(KeyboardInterrupt, match="stopped by Ctrl-C"):
            fitted(out)
    with pytest.raises(NcelmError, match=r"is not finished: continue with `ncelm fit --out .* --resume`"):
        ncelm.load(out)

    def resumed(*arguments, **options):
        return ncelm.train(*arguments, **options | {"progress": lambda at: epochs.append(at.epoch)})

    monkeypatch.setattr(fitting, "train", resumed)
    moved = out.rename(tmp_path / "moved")
    ncelm.fit(out=moved, resume=True, progress=False, threads=1)  # the text is not needed any more
    assert min(epochs) == 3
    assert contents(moved) == contents(model)


def test_a_killed_preparation_starts_again(model, tmp_path):
    out = tmp_path / "model"
    out.mkdir()
    State({"train_lines": "in memory"}).write(out)  # as SIGKILL leaves it
    with pytest.raises(NcelmError, match="give either prose"):
        ncelm.fit(out=out, resume=True, progress=False)
    fitted(out, resume=True)
    assert contents(out) == contents(model)


def test_a_killed_compilation_leaves_nothing_after_resuming(model, tmp_path, monkeypatch):
    """Temporary files of the compilation are in the folder, where the next call removes them."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    seen = []

    def killed(store, folder):
        (folder / "rest").mkdir()
        seen.append(sorted(path.name for path in folder.iterdir()))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("ncelm.fitting.fit.compile_for", killed)
        patch.setattr("ncelm.fitting.fit.shutil.rmtree", lambda *_, **__: None)  # as SIGKILL leaves it
        with pytest.raises(KeyboardInterrupt):
            fitted(tmp_path / "model")
    assert seen == [["rest"]]
    assert (tmp_path / "model" / "compile.tmp" / "rest").exists()
    fitted(tmp_path / "model", resume=True)
    assert contents(tmp_path / "model") == contents(model)
    assert not (tmp_path / "model" / "compile.tmp").exists()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_resume_starts_what_does_not_exist(model, tmp_path):
    fitted(tmp_path / "model", resume=True)
    assert contents(tmp_path / "model") == contents(model)


def test_a_resumed_fit_keeps_its_options(copy):
    with pytest.raises(NcelmError, match=r"`lowercase` is True, but .* was started without it: leave `lowercase` out"):
        fitted(copy, resume=True, lowercase=True)
    with pytest.raises(NcelmError, match=r"`minutes` is 2, but .* was started without it"):
        fitted(copy, resume=True, minutes=2)


def test_the_seed_is_remembered(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(fitting, "train_ngram", lambda *arguments, **options: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            fitted(tmp_path / "a", seed=3)
    fitted(tmp_path / "a", resume=True)
    fitted(tmp_path / "b", seed=3)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


# -- errors ----------------------------------------------------------------------------------------------------------


def test_errors(model, tmp_path, cycle_store):
    with pytest.raises(NcelmError, match="exists already: continue with `resume`, or choose another `out`"):
        fitted(model)
    with pytest.raises(ArgumentTypeError, match="`out` is None"):
        ncelm.fit("text.txt")
    with pytest.raises(ArgumentError, match="`minutes` is 0"):
        fitted(tmp_path / "x", minutes=0)
    with pytest.raises(NcelmError, match=r"there is no file absent\.txt"):
        ncelm.fit("absent.txt", tmp_path / "x")
    with pytest.raises(NcelmError, match="give either prose"):
        ncelm.fit(out=tmp_path / "x")
    with pytest.raises(NcelmError, match=r"no validation text, and too little text .* `valid_sentences`"):
        fitted(tmp_path / "x", train_lines=["a b c"] * 10)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "store.json").write_text("{}")
    with pytest.raises(NcelmError, match="is not a token store"):
        ncelm.fit(tmp_path / "store", tmp_path / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    (tmp_path / "file").touch()
    with pytest.raises(NcelmError, match="exists already"):
        fitted(tmp_path / "file")


def test_torchrun_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "started_by_torchrun", lambda: True)
    with pytest.raises(NcelmError, match="runs in one process"):
        fitted(tmp_path / "x")


def test_two_processes_do_not_share_a_folder(copy):
    from filelock import FileLock

    with FileLock(copy / fitting.LOCK), pytest.raises(NcelmError, match="another process is working on"):
        fitted(copy, resume=True)


@pytest.mark.parametrize(
    "changes",
    [{"options": []}, {"steps": {"x": {"seconds": 1.0, "finished": True}}}, {"steps": {"mix": {"seconds": "1"}}},
     {"explanation": ["no topic"]}, {"compile_seconds": -1.0}, {"compile_seconds": 10**400}, {"result": 3},
     {"result": {"weights": {"neural": "x"}}}, {"result": {"perplexity": {"test": 3}}}],
)  # fmt: skip
def test_a_damaged_fit_json_is_one_error(copy, changes):
    change_json(copy / "fit.json", changes)
    with pytest.raises(NcelmError, match=r"fit\.json is damaged"):
        fitted(copy, resume=True)


@pytest.mark.parametrize("path", ["../absent", "/absent", "", "\0", 3, None, "a" * 5000])
def test_references_of_hostile_files(copy, path):
    content = json.loads((copy / "config.json").read_text())
    change_json(copy / "config.json", {"parts": [{**part, "path": path} for part in content["parts"]]})
    with pytest.raises(NcelmError):
        ncelm.load(copy)


@pytest.mark.parametrize("path", ["../absent", "\0", 3, None, [], "a" * 5000])
def test_store_references_of_hostile_files(copy, path):
    content = json.loads((copy / "config.json").read_text())
    change_json(copy / "config.json", {"store": {**content["store"], "path": path}})
    with pytest.raises(NcelmError):
        ncelm.models.description.open_store(None, ncelm.load(copy).store_path)


def test_references_are_relative_inside_a_model_only(tmp_path):
    model, other = tmp_path / "model", tmp_path / "other"
    for folder in (model / "neural", model / "store", other):
        folder.mkdir(parents=True)
    assert run.reference(model / "neural", model / "store") == str(model / "store")
    (model / run.FIT).touch()
    assert run.reference(model / "neural", model / "store") == "../store"
    assert run.reference(model, model / "neural") == "neural"
    assert run.reference(model, other) == str(other)
    assert run.reference(other, model / "neural") == str(model / "neural")


# -- time ------------------------------------------------------------------------------------------------------------


def test_the_division_of_time():
    held_out = HeldOut(10_000, 10_000)
    assert budget.prepare_seconds(None) is None
    assert budget.prepare_seconds(60) == pytest.approx(18)
    assert budget.ngram_words(600, 50_000_000) == 50_000_000
    # exact scoring of 20,000 words takes 2 s, and the report 0.8 s more than its least time
    report = budget.REPORT_SECONDS + 0.8
    assert budget.training_seconds(60, 10, 1e-4, held_out) == pytest.approx(50 - 2 - report)
    # never more than a tenth of the time for the evaluation
    report = budget.report_seconds(1e-3)
    assert budget.training_seconds(60, 10, 1e-3, HeldOut(10**6, 10**6)) == pytest.approx(50 - 6 - report)
    # the other stages have taken too long
    assert budget.training_seconds(60, 70, 1e-4, held_out) == pytest.approx(12)


def test_words_that_are_scored_in_the_time_that_is_left():
    held_out = HeldOut(20_000, 30_000)
    assert budget.scored_words(None, 0, 1.0, held_out) == held_out
    assert budget.scored_words(60, 50, 1e-5, held_out) == held_out
    report = budget.report_seconds(1e-3)
    assert budget.scored_words(60, 35 - report, 1e-3, held_out) == HeldOut(10_000, 15_000)
    assert budget.scored_words(60, 100, 1e-3, held_out) == HeldOut(budget.LEAST_WORDS, budget.LEAST_WORDS)
    assert budget.scored_words(60, 100, 1e-3, HeldOut(500, 0)) == HeldOut(500, 0)


def test_a_text_that_is_too_large_for_the_time(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("\n".join(random_lines(1, 20_000)))
    monkeypatch.setattr(tokenize_files, "_bytes_per_second", lambda units: 200_000.0)
    monkeypatch.setattr(tokenize_files, "LEAST_PART_BYTES", 1000)
    monkeypatch.setattr(budget, "NGRAM_SECONDS_PER_WORD", 1e-4)
    monkeypatch.setattr(budget, "LEAST_WORDS", 1000)
    monkeypatch.setattr(budget, "REPORT_SECONDS", 5.5)  # nothing is left for the evaluation
    monkeypatch.setattr("ncelm.fitting.fit.score_cost", lambda config, size: 1.0)
    out = tmp_path / "model"
    ncelm.fit(train=tmp_path / "text.txt", out=out, minutes=0.1, workers=1, progress=False)
    settings, state = read_settings(out / "store"), State.read(out)
    assert 0.5 < settings["bytes_used"] / (200_000 * 0.7 * 1.8) < 1.1
    assert settings["bytes_used"] < settings["bytes"]
    assert re.search(r"^\d+ % of the text, because of the time", state.explanation["text"])
    assert re.search(r"of 9,000 of the [\d,]+ words, because of time or memory", state.explanation["n-gram model"])
    words = ncelm.TokenStore.open(out / "store").split("train").tokens
    counted = json.loads((out / "ngram" / "metrics.jsonl").read_text())["words"]
    assert 0.5 * 9000 < counted <= 9000 < words
    assert "a sample of 1,000 of" in state.explanation["result"]


def test_a_part_of_a_text_has_whole_sentences(cycle_store):
    part = fitting._part_of(cycle_store, 1000)
    assert 500 < part.tokens <= 1000
    assert part.sentences[-1] == part.tokens
    assert (part.ids[part.sentences[1:] - np.uint64(1)] == cycle_store.vocabulary.end_id).all()
    everything = fitting._part_of(cycle_store, cycle_store.split("train").tokens)
    assert np.array_equal(everything.ids, cycle_store.split("train").ids)
    assert fitting._order(replace(cycle_store, splits={"train": part})) == 5
