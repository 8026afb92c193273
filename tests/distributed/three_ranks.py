"""Run by test_process_group.py under torchrun: calls every collective and saves the results of this rank.

python -m torch.distributed.run --nproc-per-node 3 three_ranks.py STORE FOLDER

FOLDER has the stores `parts`, `damaged` in its last part, and `counts` with wrong counts.
"""

import json
import sys
from pathlib import Path

import numpy as np

from ncelm.distributed import collective, row_exchange
from ncelm.errors import NcelmError
from ncelm.io import machine
from ncelm.text.store import TokenStore

SIZE = 3
COUNTS = np.arange(50, 0, -1)  # word frequencies
SHAPES = {"target_vectors": (50, 9), "context_vectors": (51, 9), "biases": (50, 1), "matrices": (4, 9)}


def initial() -> dict[str, np.ndarray]:
    """Return integer-valued parameters, the same on all ranks."""
    random = np.random.default_rng(1)
    return {name: random.integers(-9, 9, size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def integer_deltas(rank: int, turn: int) -> dict[str, np.ndarray]:
    """Return deltas that int4 represents exactly: integers up to 7, the first one of each row being ±7.

    Each row is changed by one rank, which is not its owner.
    """
    random = np.random.default_rng([rank, turn])
    deltas = {name: random.integers(-7, 8, size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    for delta in deltas.values():
        delta[:, 0] = random.choice([-7.0, 7.0], size=len(delta))
        delta[np.arange(len(delta)) % SIZE != (rank + 1) % SIZE] = 0.0
    return deltas


def float_deltas(rank: int) -> dict[str, np.ndarray]:
    """Return deltas that int4 does not represent exactly."""
    random = np.random.default_rng([rank, 100])
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def add(parameters: dict[str, np.ndarray], deltas: dict[str, np.ndarray]) -> None:
    """Add deltas in place."""
    for name, delta in deltas.items():
        parameters[name] += delta


def main() -> None:
    """Save arrays to FOLDER/RANK.npz and texts to FOLDER/RANK.json."""
    store, folder = TokenStore.open(sys.argv[1]), Path(sys.argv[2])
    group = collective.current()
    rank, arrays, texts = group.rank, {}, {}
    assert (rank, group.size) == (machine.rank(), SIZE)

    arrays["all_reduce"] = group.all_reduce(np.array([rank + 1.0, 2.0**40 + rank, 0.5]))
    pending = [group.all_reduce_async(np.array([10.0**rank * (i + 1)])) for i in range(3)]  # several in flight
    arrays["all_reduce_async"] = np.concatenate([wait() for wait in pending])
    arrays["broadcast"] = group.broadcast(np.array([rank, 1.0 / 3.0 + rank]))
    filled = {"a": np.full((2, 3), rank, np.float32), "empty": np.zeros(0), "b": np.arange(4) + rank}
    group.broadcast_arrays(filled)
    arrays |= {f"broadcast_arrays.{name}": array for name, array in filled.items()}

    collective.check_equal(group, {"token store": "the same", "`dim`": 8})
    for value in (0, 2):  # the rank that differs from the others
        try:
            collective.check_equal(group, {"token store": "the same", "`dim`": 8 + (rank == value)})
        except NcelmError as error:
            texts[f"check_equal.{value}"] = str(error)
    for name, source in (("of_open_store", store), ("of_path", sys.argv[1]), ("of_parts", folder / "parts")):
        arrays[f"shard.{name}"] = np.array(group.open_store(source).split("train").ids)
    stores = {"damaged": "damaged", "counts": "counts", "different": "parts" if rank == 2 else "counts"}
    for name, source in stores.items():
        try:
            group.open_store(folder / source)
        except NcelmError as error:
            texts[f"store.{name}"] = str(error).replace(f"{folder}/", "")
    try:
        with collective.errors_on_all(group):
            if rank == 1:
                raise RuntimeError("of worker 1")
    except (NcelmError, RuntimeError) as error:
        texts["errors_on_all"] = str(error)
    with collective.errors_on_all(group):
        pass

    row_exchange.FREQUENT_ROWS = 8  # the other rows are examined in rounds of several exchanges
    parameters = initial()
    state = {"accumulator": {name: np.ones_like(array) for name, array in parameters.items()}}
    group.register(parameters, state, COUNTS, 20)
    for turn in range(3):
        add(parameters, integer_deltas(rank, turn))
        for _ in range(row_exchange.least_round(SIZE)):
            group.synchronize()
        arrays |= {f"exact.{turn}.{name}": array.copy() for name, array in parameters.items()}
    add(parameters, integer_deltas(rank, 3))
    group.synchronize(full=True)
    arrays |= {f"full.{name}": array.copy() for name, array in parameters.items()}
    for array in state["accumulator"].values():
        array += rank + 1.0
    add(parameters, float_deltas(rank))
    group.synchronize()  # quantised …
    add(parameters, float_deltas(rank))
    group.synchronize(full=True)  # … and the rest
    arrays |= {f"float.{name}": array for name, array in parameters.items()}
    arrays |= {f"accumulator.{name}": array for name, array in state["accumulator"].items()}

    broken = initial()
    group.register(broken, {}, COUNTS, 20)
    broken["matrices"][0, 0] = np.nan if rank == 1 else 0.0
    texts["problem"] = group.synchronize() or ""

    sgd = initial()
    group.register(sgd, {}, COUNTS, 20)
    add(sgd, integer_deltas(rank, 4))
    group.synchronize(full=True)
    arrays |= {f"sgd.{name}": array for name, array in sgd.items()}

    np.savez(folder / f"{rank}.npz", **arrays)
    (folder / f"{rank}.json").write_text(json.dumps(texts | {"bytes_sent": group.bytes_sent}))


if __name__ == "__main__":
    main()
