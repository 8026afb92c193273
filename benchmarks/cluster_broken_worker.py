"""`ncelm train` with a worker whose parameters get a NaN. Started by torchrun for cluster.py.

    torchrun … benchmarks/cluster_broken_worker.py RANK EPOCHS [arguments of ncelm train]

After EPOCHS (with a fraction) worker RANK writes NaN into one of its parameters, and makes the file `broken` in TMPDIR.
"""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ncelm.cli.main import main
from ncelm.training.backend import Engine
from ncelm.training.loop import Loop


def break_worker(rank: int, epochs: float) -> None:
    """Let the training loop of one worker write a NaN after a number of epochs."""
    run_epochs = Loop._run_epochs

    def run_epochs_broken(self: Loop, engine: Engine) -> None:
        run, random, done = engine.run, np.random.default_rng(round(1e6 * epochs)), []

        def run_broken(*arguments: Any) -> Any:
            losses = run(*arguments)
            if not done and self.setup.progress(self.state) >= epochs:
                done.append(True)
                tables = list(self.snapshot.model.arrays().values())
                table = tables[random.integers(len(tables))]
                table.reshape(-1)[random.integers(table.size)] = np.nan
                Path(os.environ["TMPDIR"], "broken").touch()
            return losses

        if int(os.environ["RANK"]) == rank:
            engine.run = run_broken  # type: ignore[assignment,method-assign]
        run_epochs(self, engine)

    Loop._run_epochs = run_epochs_broken  # type: ignore[assignment,method-assign]


if __name__ == "__main__":
    break_worker(int(sys.argv[1]), float(sys.argv[2]))
    sys.exit(main(["train", *sys.argv[3:]]))
