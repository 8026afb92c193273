"""ncelm.distributed.process_group with three ranks under torchrun: exact collectives, byte-identical parameters."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.distributed.launch import finish, torchrun
from tests.distributed.three_ranks import SHAPES, SIZE, initial, integer_deltas

from ncelm.text import store as store_module
from ncelm.text.prepare import prepare

pytest.importorskip("torch", reason="needs the extra `torch`")
pytestmark = pytest.mark.slow  # torchrun imports PyTorch in four processes


@pytest.fixture(scope="module")
def ranks(cycle_store, tmp_path_factory):
    """Return the arrays and the texts that each rank saved."""
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(__file__).parent / "three_ranks.py"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "PART_IDS", 100)
        prepare(train=cycle_store.path.parent / "train", out=folder / "parts")
    for name in ("damaged", "counts"):
        shutil.copytree(folder / "parts", folder / name)
    ids = (folder / "damaged" / "train.ids").read_bytes()
    (folder / "damaged" / "train.ids").write_bytes(ids[:-4] + ids[:2] + ids[-2:])
    lines = (folder / "counts" / "vocab.txt").read_text().splitlines()
    (word, count), (other, less) = (line.split("\t") for line in (lines[2], lines[-1]))
    lines[2], lines[-1] = f"{word}\t{int(count) + 1}", f"{other}\t{int(less) - 1}"
    (folder / "counts" / "vocab.txt").write_text("\n".join(lines) + "\n")
    code, _, err = finish(torchrun([cycle_store.path, folder], script=(script,), workers=SIZE))
    assert code == 0, err
    results = []
    for rank in range(SIZE):
        with np.load(folder / f"{rank}.npz") as arrays:
            results.append((dict(arrays), json.loads((folder / f"{rank}.json").read_text())))
    return results


def expected_sum(*deltas_of_all_ranks):
    """Return initial parameters plus the deltas, in float64."""
    total = {name: array.astype(np.float64) for name, array in initial().items()}
    for deltas in deltas_of_all_ranks:
        for name, delta in deltas.items():
            total[name] += delta
    return total


def test_all_reduce_and_broadcast_are_exact(ranks):
    for arrays, _ in ranks:
        np.testing.assert_array_equal(arrays["all_reduce"], [6.0, 3 * 2.0**40 + 3, 1.5])
        np.testing.assert_array_equal(arrays["all_reduce_async"], [111.0, 222.0, 333.0])
        np.testing.assert_array_equal(arrays["broadcast"], [0.0, 1.0 / 3.0])
        np.testing.assert_array_equal(arrays["broadcast_arrays.a"], np.zeros((2, 3), np.float32))
        np.testing.assert_array_equal(arrays["broadcast_arrays.b"], np.arange(4))


def test_shards_are_equal_parts_of_the_text(ranks, cycle_store):
    whole = cycle_store.split("train").ids
    for name in ("of_open_store", "of_path", "of_parts"):
        shards = [arrays[f"shard.{name}"] for arrays, _ in ranks]
        assert {shard.size for shard in shards} == {whole.size // SIZE}
        np.testing.assert_array_equal(np.concatenate(shards), whole[: SIZE * (whole.size // SIZE)])


def test_errors_of_a_store_are_raised_on_all_ranks(ranks):
    """The worker that reads the damaged part raises the error itself."""
    damaged = "damaged/train.ids is damaged: prepare the store again"
    assert [texts["store.damaged"] for _, texts in ranks] == [f"worker 2 failed: {damaged}"] * 2 + [damaged]
    for _, texts in ranks:
        assert texts["store.counts"] == (
            "counts/vocab.txt has counts that differ from the training text: prepare the store again"
        )
        # the fingerprint does not include counts, so that the sums are compared; they are right on worker 2 only
        assert "counts/vocab.txt has counts that differ from the training text" in texts["store.different"]


def test_any_error_is_raised_on_all_ranks(ranks):
    expected = "worker 1 failed: of worker 1"
    assert [texts["errors_on_all"] for _, texts in ranks] == [expected, "of worker 1", expected]


def test_check_equal_raises_on_all_ranks(ranks):
    for _, texts in ranks:
        assert (
            texts["check_equal.0"] == "worker 1 has `dim` 8, and worker 0 has 9: start all workers with the same `dim`"
        )
        assert (
            texts["check_equal.2"] == "worker 2 has `dim` 9, and worker 0 has 8: start all workers with the same `dim`"
        )


def test_integer_deltas_sum_exactly_on_all_ranks(ranks):
    """Deltas without quantisation error are complete after each round of messages, without a full synchronisation."""
    for turn in range(3):
        expected = expected_sum(*(integer_deltas(rank, t) for rank in range(SIZE) for t in range(turn + 1)))
        for arrays, _ in ranks:
            for name in SHAPES:
                np.testing.assert_array_equal(arrays[f"exact.{turn}.{name}"], expected[name])


def test_a_full_synchronisation_sums_integer_deltas_exactly(ranks):
    expected = expected_sum(*(integer_deltas(rank, turn) for rank in range(SIZE) for turn in range(4)))
    sgd = expected_sum(*(integer_deltas(rank, 4) for rank in range(SIZE)))
    for arrays, _ in ranks:
        for name in SHAPES:
            np.testing.assert_array_equal(arrays[f"full.{name}"], expected[name])
            np.testing.assert_array_equal(arrays[f"sgd.{name}"], sgd[name])


def test_a_full_synchronisation_makes_parameters_byte_identical(ranks):
    """With quantisation errors too: they are dropped."""
    first = ranks[0][0]
    for name in SHAPES:
        for arrays, _ in ranks:
            assert arrays[f"float.{name}"].tobytes() == first[f"float.{name}"].tobytes()
            # 1 at the start; the ranks added 1, 2 and 3, and sent the growth with their rows
            np.testing.assert_allclose(arrays[f"accumulator.{name}"].mean(axis=1), 7.0, rtol=1e-5)


def test_a_number_that_is_not_finite_is_reported_on_all_ranks(ranks):
    assert {texts["problem"] for _, texts in ranks} == {"worker 1 has parameters that are not finite"}


def test_bytes_sent_are_counted(ranks):
    assert all(texts["bytes_sent"] > 0 for _, texts in ranks)
