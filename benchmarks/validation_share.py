"""Share of validation in the time of an epoch, for the default configuration and for each recipe.

    python benchmarks/validation_share.py STORE … [--only NAME …]

Training and evaluation on the sample of `ncelm.training.validation` alternate, on one thread. CPU times of a part of an
epoch and of a part of the sample are extrapolated to the whole. PyTorch recipes need the extra `torch`.
"""

import statistics
import time
from pathlib import Path

import numpy as np

from common import argument_parser, log, markdown_table
from ncelm.distributed.collective import SingleProcess
from ncelm.errors import NcelmError
from ncelm.kernels.threads import Team
from ncelm.text.store import TokenStore
from ncelm.training.adaptive import default_config
from ncelm.training.config import TrainConfig
from ncelm.training.recipes import RECIPES
from ncelm.training.setup import Setup
from ncelm.training.start import initial_snapshot
from ncelm.training.validation import evaluate_sample, sample_size

ROUNDS, SECONDS, VALIDATED = 3, 0.5, 500


def share(store: TokenStore, config: TrainConfig) -> list[str]:
    """Return the cells of a row: words of the sample, microseconds per word of both, and the share of validation."""
    setup = Setup.create(store, Path(), config, (), SingleProcess())
    snapshot = initial_snapshot(setup)
    tokens, valid = store.split("train").tokens, store.split("valid").tokens
    sample = sample_size(config, len(store.vocabulary), tokens, valid)
    part, training, validation = min(sample, VALIDATED), [], []
    with Team(1) as team:
        engine = setup.backend.create(
            snapshot.model,
            snapshot.optimizer_state,
            setup.noise(),
            store,
            config,
            team,
            snapshot.log_normalizers,
            setup.context_ids,
            snapshot.carried,
        )
        n = min(engine.planned, setup.steps_per_epoch)
        rates = np.zeros(n)
        engine.run(0, 0, rates, rates)  # compiles
        evaluate_sample(snapshot.model, store, "valid", 10, team)
        for _ in range(ROUNDS):
            words, began = 0, time.process_time()
            while (spent := time.process_time() - began) < SECONDS:
                engine.run(0, 0, rates, rates)
                words += n * config.batch_size
            training.append(spent / words)
            began = time.process_time()
            evaluate_sample(snapshot.model, store, "valid", part, team)
            validation.append((time.process_time() - began) / part)
    train_seconds = statistics.median(training) * tokens * config.validation.interval
    valid_seconds = statistics.median(validation) * sample
    return [
        f"{sample:,} of {valid:,}",
        f"{1e6 * statistics.median(training):.2f}",
        f"{1e6 * statistics.median(validation):.1f}",
        f"{100 * valid_seconds / (train_seconds + valid_seconds):.1f} %",
    ]


def main() -> None:
    """Print a table for each store."""
    parser = argument_parser(__doc__)
    parser.add_argument("stores", type=Path, nargs="+")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="recipes, or default")
    arguments = parser.parse_args()
    rows = []
    for path in arguments.stores:
        store = TokenStore.open(path)
        default = default_config(store.split("train").tokens, len(store.vocabulary))
        for name, config in {"default": default, **{name: make() for name, make in RECIPES.items()}}.items():
            if arguments.only and name not in arguments.only:
                continue
            try:
                rows.append([path.name, name, *share(store, config)])
                log(" ".join(rows[-1]))
            except NcelmError as error:
                log(f"{path.name} {name}: {error}")
    header = ["text", "configuration", "sample", "µs per word of training", "of validation", "share of validation"]
    print("\n".join(markdown_table(header, rows)))


if __name__ == "__main__":
    main()
