"""DistributedDataParallel, FSDP2 and divided rows, two gloo processes: parameters equal those of a single process."""

import json
from pathlib import Path

import pytest
from tests.distributed.launch import finish, torchrun

pytest.importorskip("torch", reason="needs the extra `torch`")
pytestmark = [pytest.mark.slow, pytest.mark.serial]  # torchrun imports PyTorch in three processes

from tests.torch.two_ranks import RANKS, SCENARIOS  # noqa: E402


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return the error of each scenario, or "", for each rank. A scenario that hangs exceeds the time limit."""
    folder = tmp_path_factory.mktemp("ranks")
    code, _, err = finish(torchrun([folder], script=(Path(__file__).parent / "two_ranks.py",), workers=RANKS))
    assert code == 0, err
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_two_ranks_equal_one_process(results, scenario):
    for found in results:
        assert not found[scenario], found[scenario]
