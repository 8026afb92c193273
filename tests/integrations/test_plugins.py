"""Plug-ins of datatrove, NeMo Curator and Data-Juicer.

Where one of these programs is installed, it runs the plug-in. Where NeMo Curator or Data-Juicer are not, which need
dozens of other packages, a stand-in of the documented base class is used instead: same names, same signatures.
"""

import importlib
import json
import math
import sys
from abc import ABC, abstractmethod
from types import ModuleType

import pytest
from tests.integrations.conftest import DOCUMENTS, GOOD

from ncelm.errors import MissingExtraError


def threshold(expected) -> float:
    """Return a perplexity between that of the good and that of the bad document."""
    return (expected.perplexities[0] + expected.perplexities[1]) / 2


def is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def stand_in(monkeypatch, name: str, **members: object) -> None:
    """Make a module importable, with its parents."""
    parts = name.split(".")
    for n in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:n]), ModuleType(".".join(parts[:n])))
    vars(sys.modules[name]).update(members)


def plugin(monkeypatch, name: str) -> ModuleType:
    """Import a module of ncelm.integrations anew; it is forgotten after the test."""
    full = f"ncelm.integrations.{name}"
    monkeypatch.delitem(sys.modules, full, raising=False)
    module = importlib.import_module(full)
    monkeypatch.setitem(sys.modules, full, module)
    return module


@pytest.mark.parametrize(
    ("name", "package"),
    [("datatrove", "datatrove"), ("nemo_curator", "nemo_curator"), ("data_juicer", "data_juicer")],
)
def test_a_missing_program(monkeypatch, name, package):
    for module in list(sys.modules):
        if module == package or module.startswith(f"{package}."):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match="is not installed: pip install"):
        plugin(monkeypatch, name)


# -- datatrove -------------------------------------------------------------------------------------------------------


@pytest.fixture
def documents():
    data = pytest.importorskip("datatrove.data", reason="needs datatrove: pip install datatrove")
    return [data.Document(text=text, id=str(i)) for i, text in enumerate(DOCUMENTS)]


@pytest.mark.parametrize("batch_size", [1, 4])
def test_the_filter_of_datatrove(documents, expected, batch_size):
    from ncelm.integrations.datatrove import PerplexityFilter

    step = PerplexityFilter(expected.model, max_perplexity=threshold(expected), max_unknown=0.4, batch_size=batch_size)
    kept = list(step.run(iter(documents)))
    assert [document.id for document in kept] == ["0", "5"]
    assert kept[0].metadata["ncelm_perplexity"] == pytest.approx(expected.perplexities[0])
    counts = {name: each.total for name, each in step.stats.stats.items()}
    assert counts["dropped_empty"] == 2
    assert counts["dropped_unknown_words"] == 1
    assert counts["dropped_high_perplexity"] == 1
    assert counts["total"] == len(DOCUMENTS)


@pytest.mark.serial
def test_a_pipeline_of_datatrove(documents, expected, tmp_path):
    """Two worker processes read, filter and write files."""
    executor = pytest.importorskip("datatrove.executor")
    pytest.importorskip("orjson", reason="datatrove's writer needs orjson")
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter

    from ncelm.integrations.datatrove import PerplexityFilter

    (tmp_path / "corpus").mkdir()
    for name in ("a", "b"):
        lines = [json.dumps({"text": text, "id": f"{name}{i}"}) for i, text in enumerate(DOCUMENTS)]
        (tmp_path / "corpus" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    excluded = JsonlWriter(str(tmp_path / "excluded"), compression=None)
    steps = [
        JsonlReader(str(tmp_path / "corpus")),
        PerplexityFilter(expected.model, max_perplexity=threshold(expected), exclusion_writer=excluded),
        JsonlWriter(str(tmp_path / "kept"), compression=None),
    ]
    executor.LocalPipelineExecutor(steps, tasks=2, workers=2, logging_dir=str(tmp_path / "logs")).run()

    def ids(folder: str) -> list[str]:
        files = (tmp_path / folder).glob("*.jsonl")
        return sorted(json.loads(line)["id"] for file in files for line in file.read_text().splitlines())

    assert ids("kept") == ["a0", "a5", "b0", "b5"]
    assert ids("excluded") == ["a1", "a3", "a4", "b1", "b3", "b4"]  # the reader skips the document without text


def test_the_statistics_of_datatrove(documents, expected, tmp_path):
    pytest.importorskip("tldextract", reason="datatrove's statistics need tldextract")
    from ncelm.integrations.datatrove import PerplexityStats

    step = PerplexityStats(str(tmp_path), expected.model, groups_to_compute=["summary"])
    done = list(step.run(iter(documents)))
    found = [document.metadata["ncelm_perplexity"] for document in done]
    assert found == pytest.approx([value or 0.0 for value in expected.perplexities])
    summary = json.loads((tmp_path / "summary" / "ncelm_perplexity" / "00000.json").read_text())["summary"]
    assert summary["n"] == len(DOCUMENTS)
    assert summary["total"] == pytest.approx(sum(found))


# -- NeMo Curator ----------------------------------------------------------------------------------------------------


class DocumentFilter(ABC):
    """The documented interface of nemo_curator.stages.text.filters.doc_filter.DocumentFilter, version 1.4."""

    def __init__(self) -> None:
        self._name = self.__class__.__name__

    @abstractmethod
    def score_document(self, text): ...

    @abstractmethod
    def keep_document(self, scores): ...

    @property
    def name(self):
        return self._name


@pytest.fixture
def nemo_curator(monkeypatch):
    """The plug-in, with the real base class if NeMo Curator is installed."""
    if not is_installed("nemo_curator"):
        stand_in(monkeypatch, "nemo_curator.stages.text.filters.doc_filter", DocumentFilter=DocumentFilter)
    return plugin(monkeypatch, "nemo_curator")


def test_the_filter_of_nemo_curator(nemo_curator, expected):
    keep = nemo_curator.PerplexityFilter(expected.model, max_perplexity=threshold(expected))
    scores = [keep.score_document(text) for text in DOCUMENTS]
    assert scores == pytest.approx([value or math.nan for value in expected.perplexities], nan_ok=True)
    assert [keep.keep_document(score) for score in scores][:4] == [True, False, False, False]
    assert keep.name == "ncelm_perplexity"
    keep.load_model()


def test_a_stage_of_nemo_curator(nemo_curator, expected):
    filters = pytest.importorskip("nemo_curator.stages.text.filters", reason="needs NeMo Curator")
    pandas = pytest.importorskip("pandas")
    if not hasattr(filters, "ScoreFilter"):
        pytest.skip("needs NeMo Curator, not the stand-in of its base class")
    from nemo_curator.tasks import DocumentBatch

    keep = nemo_curator.PerplexityFilter(expected.model, max_perplexity=threshold(expected))
    stage = filters.ScoreFilter(keep, text_field="text", score_field="perplexity")
    assert stage.ray_stage_spec()["is_actor_stage"]
    stage.setup()
    table = pandas.DataFrame({"text": DOCUMENTS})
    kept = stage.process(DocumentBatch(data=table, dataset_name="d")).to_pandas()
    assert GOOD in list(kept["text"])
    assert set(kept["text"]) <= {GOOD, DOCUMENTS[4], DOCUMENTS[5]}


# -- Data-Juicer -----------------------------------------------------------------------------------------------------


class Registry:
    """The documented interface of data_juicer.utils.registry.Registry, version 1.6."""

    def __init__(self) -> None:
        self.modules = {}

    def register_module(self, name, module_cls=None, force=False):
        def register(module):
            self.modules[name] = module
            return module

        return register


class Filter:
    """The documented interface of data_juicer.ops.base_op.Filter, version 1.6."""

    def __init__(self, *args, text_key="text", reversed_range=False, **kwargs) -> None:
        self.text_key, self.reversed_range = text_key, reversed_range
        self.compute_stats, self.process = self.compute_stats_batched, self.process_batched

    def get_keep_boolean(self, value, low=None, high=None):
        inside = (low is None or value >= low) and (high is None or value <= high)
        return not inside if self.reversed_range else inside


@pytest.fixture
def data_juicer(monkeypatch):
    """The plug-in, with the real base class if Data-Juicer is installed."""
    if not is_installed("data_juicer"):
        fields = type("Fields", (), {"stats": "__dj__stats__"})
        stand_in(monkeypatch, "data_juicer.ops.base_op", OPERATORS=Registry(), Filter=Filter)
        stand_in(monkeypatch, "data_juicer.utils.constant", Fields=fields)
    return plugin(monkeypatch, "data_juicer")


def test_the_operator_of_data_juicer(data_juicer, expected):
    operator = data_juicer.NcelmPerplexityFilter(str(expected.model), max_ppl=threshold(expected))
    assert data_juicer.OPERATORS.modules["ncelm_perplexity_filter"] is data_juicer.NcelmPerplexityFilter
    samples = {"text": [*DOCUMENTS, None], "__dj__stats__": [{} for _ in range(len(DOCUMENTS) + 1)]}
    samples["__dj__stats__"][0]["ncelm_perplexity"] = 1.5  # computed already
    done = operator.compute_stats(samples)
    found = [stats["ncelm_perplexity"] for stats in done["__dj__stats__"]]
    assert found[0] == 1.5
    assert found[1:] == pytest.approx([*(value or 0.0 for value in expected.perplexities[1:]), 0.0])
    assert list(operator.process(done))[:4] == [True, False, False, False]
    outside = data_juicer.NcelmPerplexityFilter(str(expected.model), max_ppl=threshold(expected), reversed_range=True)
    assert list(outside.process(done))[:4] == [False, True, False, False]


def test_a_dataset_of_data_juicer(data_juicer, expected):
    pytest.importorskip("data_juicer.core.data", reason="needs Data-Juicer: pip install py-data-juicer")
    from data_juicer.core.data import NestedDataset

    dataset = NestedDataset.from_list([{"text": text} for text in DOCUMENTS])
    operator = data_juicer.NcelmPerplexityFilter(str(expected.model), max_ppl=threshold(expected))
    kept = operator.run(dataset)
    assert GOOD in kept["text"]
    assert DOCUMENTS[1] not in kept["text"]
