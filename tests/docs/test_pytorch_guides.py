"""The guides to PyTorch: every block is executed, in order, in one folder for each page."""

import pytest
from tests.docs.blocks import ROOT, blocks_of, fences_of

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

PAGES = sorted(path.stem for path in (ROOT / "docs" / "guides").glob("pytorch*.md"))


@pytest.fixture
def quiet_torch():
    """One thread, because other processes use the cores; the setting of sparse tensors that PyTorch warns about."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.sparse.check_sparse_tensor_invariants.disable()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", PAGES)
def test_every_block_is_executed(reader, name, quiet_torch):
    page = ROOT / "docs" / "guides" / f"{name}.md"
    blocks = blocks_of(page)
    assert len(blocks) == len(fences_of(page)) > 1
    for block in blocks:
        assert not block.not_run
        reader.execute(block)
    if name == "pytorch-two-tower":
        check_the_effect_of_the_correction(**reader.names)


def check_the_effect_of_the_correction(recall, corrected, plain, new_users, **_):
    with torch.no_grad():
        found = [recall(towers.queries(new_users), towers.item.weight) for towers in (corrected, plain)]
    assert found[0] > found[1] + 0.02


def test_the_pages_are_found():
    assert len(PAGES) == 5
