"""Run by test_training.py under torchrun: trains models and saves the digests of this rank's final arrays.

python -m torch.distributed.run … train_ranks.py STORE FOLDER OPTIONS, where OPTIONS is JSON: {run name: options}
"""

import hashlib
import json
import sys
from pathlib import Path

from ncelm.distributed import collective
from ncelm.training.loop import train


def main() -> None:
    """Train FOLDER/NAME for each run; save the digests of parameters and accumulators to FOLDER/NAME.RANK.json."""
    store, folder, runs = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    group, registered = collective.current(), {}
    register = type(group).register

    def record(self, parameters, optimizer_state, *rest):
        registered.update({"parameters": parameters, **optimizer_state})
        register(self, parameters, optimizer_state, *rest)

    type(group).register = record  # training updates these arrays in place
    for name, options in runs.items():
        registered.clear()
        result = train(store, folder / name, threads=1, **options)
        digests = {
            f"{kind}.{parameter}": hashlib.sha256(array.tobytes()).hexdigest()
            for kind, arrays in registered.items()
            for parameter, array in arrays.items()
        }
        (folder / f"{name}.{group.rank}.json").write_text(json.dumps({"result": result, "digests": digests}))


if __name__ == "__main__":
    main()
