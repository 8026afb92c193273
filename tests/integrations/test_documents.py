"""Scores of documents, and functions of batches for `datasets`."""

import math
import pickle

import numpy as np
import pytest
from tests.helpers import save_model
from tests.integrations.conftest import BAD, DOCUMENTS, GOOD

import ncelm
from ncelm.errors import ArgumentError, ArgumentTypeError, NcelmError
from ncelm.integrations.batches import AddPerplexity, PerplexityFilter
from ncelm.integrations.documents import DocumentScore, DocumentScorer, Limits
from ncelm.models.log_bilinear import LogBilinear, ModelConfig


def known(values):
    return [math.nan if value is None else value for value in values]


def test_perplexities_are_those_of_all_lines_together(expected):
    scorer = DocumentScorer(expected.model)
    scores = scorer.scores(DOCUMENTS)
    assert [score.perplexity for score in scores] == pytest.approx(known(expected.perplexities), nan_ok=True)
    assert [score.unknown for score in scores] == [0, 0, 0, 0, 0.5, 0]
    np.testing.assert_equal([scorer.score(text) for text in DOCUMENTS], scores)
    assert scorer.scores([]) == []


def test_arpa_files_and_neural_models(expected, cycle_store, tmp_path):
    ncelm.export_arpa(expected.model, tmp_path / "arpa.gz")
    probabilities = np.full(len(cycle_store.vocabulary), 1 / len(cycle_store.vocabulary))
    model = LogBilinear.initialise(ModelConfig(context=2, dim=5), probabilities, 0, 0.5)
    neural = save_model(tmp_path / "neural", cycle_store, model)
    found = DocumentScorer(tmp_path / "arpa.gz").score(GOOD).perplexity
    assert found == pytest.approx(expected.perplexities[0], rel=1e-5)
    lines = [line for line in GOOD.split("\n") if line]
    assert DocumentScorer(neural).score(GOOD).perplexity == pytest.approx(ncelm.load(neural).perplexity(lines))


def test_a_scorer_is_pickled_as_path_and_checksum(expected, tmp_path):
    ncelm.export_arpa(expected.model, tmp_path / "arpa")
    for path in (expected.model, tmp_path / "arpa"):
        scorer = DocumentScorer(path)
        before = pickle.dumps(scorer)
        value = scorer.score(GOOD)
        assert pickle.dumps(scorer) == before  # the fingerprint of a function in `datasets` stays the same
        assert pickle.loads(before).score(GOOD) == value
    copied = pickle.dumps(DocumentScorer(tmp_path / "arpa"))
    (tmp_path / "arpa").write_text((tmp_path / "arpa").read_text().replace("-0.", "-1.", 1))
    with pytest.raises(NcelmError, match="is not the model that this process was started with"):
        pickle.loads(copied).score(GOOD)


def test_a_percentile_of_a_sample(expected):
    scorer = DocumentScorer(expected.model)
    values = [value for value in expected.perplexities if value is not None]
    assert scorer.percentile(DOCUMENTS, 50) == pytest.approx(np.percentile(values, 50))
    with pytest.raises(NcelmError, match="has no document with words"):
        scorer.percentile(["", " "], 50)
    with pytest.raises(ArgumentError, match="`percent` is 101"):
        scorer.percentile(DOCUMENTS, 101)


def test_limits():
    limits = Limits(10, 20, 0.25)
    for score, reason in (
        ((15, 0), None),
        ((10, 0.25), None),
        ((20, 0), None),
        ((9.9, 0), "low_perplexity"),
        ((20.1, 0), "high_perplexity"),
        ((15, 0.3), "unknown_words"),
        ((math.nan, 0), "empty"),
    ):
        assert limits.reason(DocumentScore(*score)) == reason
    for wrong in ({"min_perplexity": -1}, {"max_unknown": 2}, {"min_perplexity": 3, "max_perplexity": 2}):
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            Limits(**wrong)


def test_wrong_models_and_data(expected, tmp_path):
    with pytest.raises(NcelmError, match="there is no model"):
        DocumentScorer(tmp_path / "nothing")
    with pytest.raises(NcelmError, match="config"):
        DocumentScorer(tmp_path)
    with pytest.raises(ArgumentTypeError):
        DocumentScorer(expected.model).scores([1])
    add = AddPerplexity(expected.model)
    with pytest.raises(NcelmError, match="no column 'text': give one of content, id as `column`"):
        add({"content": ["a"], "id": [1]})
    with pytest.raises(NcelmError, match="column 'text' has a value of type int"):
        add({"text": ["a", 1]})
    assert add({"text": [None, np.str_("w1 w2")]})["ncelm_perplexity"][0] is None


# -- Hugging Face datasets -------------------------------------------------------------------------------------------


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="needs Hugging Face datasets: pip install datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    datasets.disable_progress_bars()
    return datasets.Dataset.from_dict({"text": DOCUMENTS, "id": list(range(len(DOCUMENTS)))})


def test_map_of_datasets(dataset, expected):
    mapped = dataset.map(AddPerplexity(expected.model), batched=True, batch_size=4)
    assert mapped["id"][:] == dataset["id"][:]
    assert known(mapped["ncelm_perplexity"]) == pytest.approx(known(expected.perplexities), nan_ok=True)
    assert mapped["ncelm_unknown"][4] == 0.5
    again = dataset.map(AddPerplexity(expected.model), batched=True, batch_size=4)
    assert again._fingerprint == mapped._fingerprint  # the cache applies


def test_filter_of_datasets(dataset, expected):
    limit = (expected.perplexities[0] + expected.perplexities[1]) / 2
    keep = PerplexityFilter(expected.model, max_perplexity=limit, max_unknown=0.4)
    kept = dataset.filter(keep, batched=True, batch_size=2)["text"][:]
    assert kept == [GOOD, "w3 w4 w5"]
    assert BAD not in kept


@pytest.mark.serial
def test_processes_of_datasets(dataset, expected):
    alone = dataset.map(AddPerplexity(expected.model), batched=True)
    several = dataset.map(AddPerplexity(expected.model), batched=True, num_proc=2)
    assert several.to_dict() == alone.to_dict()
