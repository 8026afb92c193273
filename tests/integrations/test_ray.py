"""Ray Data: results of several workers, also if one is killed."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from tests.integrations.conftest import DOCUMENTS

from ncelm.integrations.batches import AddPerplexity, PerplexityFilter

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'ncelm[ray]'")
pytest.importorskip("ray.data", reason="needs Ray Data: pip install 'ncelm[ray]'")

pytestmark = [pytest.mark.serial, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

ROWS = 600


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster of this machine with two workers; the results of Ray Data keep the order of the documents."""
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root / "src"), str(root)])
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        object_store_memory=100_000_000,
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    yield
    ray.shutdown()


@pytest.fixture
def rows() -> list[dict[str, object]]:
    return [{"id": i, "text": DOCUMENTS[i % len(DOCUMENTS)] + f"\nw{i % 20} w{(i * i) % 20}"} for i in range(ROWS)]


class AddOrDie(AddPerplexity):
    """Kills its own process with the first batch that any worker gets."""

    def __init__(self, model: Path, marker: Path) -> None:
        super().__init__(model)
        self.marker = marker

    def __call__(self, batch):
        try:
            self.marker.touch(exist_ok=False)
        except FileExistsError:
            return super().__call__(batch)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")


def alone(rows, expected):
    """Return the columns that one process computes."""
    return AddPerplexity(expected.model)({"text": [row["text"] for row in rows]})


def test_scores_are_those_of_one_process(cluster, rows, expected):
    from ncelm.integrations.ray import add_perplexity

    data = ray.data.from_items(rows, override_num_blocks=6)
    found = add_perplexity(data, expected.model, workers=2, batch_size=50).take_all()
    single = alone(rows, expected)
    assert [row["id"] for row in found] == list(range(ROWS))
    assert [row["text"] for row in found] == [row["text"] for row in rows]
    for name, values in single.items():
        np.testing.assert_array_equal([row[name] for row in found], np.array(values, np.float64))


def test_a_killed_worker_loses_nothing(cluster, rows, expected, tmp_path):
    from ncelm.integrations.ray import _Add, _map

    data = ray.data.from_items(rows, override_num_blocks=6)
    mapped = _map(data, _Add, AddOrDie(expected.model, tmp_path / "killed"), workers=2, batch_size=50)
    found = mapped.take_all()
    assert (tmp_path / "killed").exists()
    single = alone(rows, expected)
    assert [row["id"] for row in found] == list(range(ROWS))
    np.testing.assert_array_equal([row["ncelm_perplexity"] for row in found], single["ncelm_perplexity"])


def test_filtered_documents_are_those_of_one_process(cluster, rows, expected):
    from ncelm.integrations.ray import filter_perplexity

    values = alone(rows, expected)["ncelm_perplexity"]
    limit = float(np.median(values))
    data = ray.data.from_items(rows, override_num_blocks=6)
    kept = filter_perplexity(data, expected.model, workers=2, batch_size=64, max_perplexity=limit).take_all()
    keep = PerplexityFilter(expected.model, max_perplexity=limit)({"text": [row["text"] for row in rows]})
    assert [row["id"] for row in kept] == [i for i, is_kept in enumerate(keep) if is_kept]
    assert 0 < len(kept) < ROWS
