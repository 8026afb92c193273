"""ncelm.torch.metrics: agreement with all scores at once, and the bias of sampled ranks."""

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

from ncelm.torch import ranks, recall_at_k, sampled_ranks, top_k  # noqa: E402

N, V, D = 13, 40, 4


@pytest.fixture(params=[None, 30])
def case(request, monkeypatch):
    if request.param:  # blocks of 5 examples and 6 classes
        monkeypatch.setattr("ncelm.torch.exact.BLOCK_SCORES", request.param)
        monkeypatch.setattr("ncelm.torch.exact.BLOCK_EXAMPLES", 5)
    random = torch.Generator().manual_seed(0)
    tensors = (torch.randn(size, generator=random) for size in ((N, D), (V, D), (V,)))
    return (*tensors, torch.randint(V, (N,), generator=random))


@pytest.mark.parametrize("k", [1, 7, V])
def test_top_k_in_blocks(case, k):
    input, weight, bias, _ = case
    values, classes = top_k(input, weight, bias, k=k)
    expected = (input @ weight.T + bias).topk(k, 1)
    torch.testing.assert_close(values, expected.values)
    assert torch.equal(classes, expected.indices)
    assert top_k(input[:0], weight, bias, k=k)[1].shape == (0, k)
    with pytest.raises(ValueError, match="k is 41: give a number from 1 to 40"):
        top_k(input, weight, bias, k=V + 1)


def test_ranks_in_blocks(case):
    input, weight, bias, target = case
    scores = input @ weight.T + bias
    expected = (scores > scores.gather(1, target.unsqueeze(1))).sum(1) + 1
    assert torch.equal(ranks(input, weight, target, bias), expected)
    _, classes = top_k(input, weight, bias, k=5)
    torch.testing.assert_close(recall_at_k(classes, target), (expected <= 5).float().mean())


def test_recall_of_several_targets():
    classes = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    target = torch.tensor([[1, 3, 9], [5, -100, -100], [-100, -100, -100]])
    torch.testing.assert_close(recall_at_k(classes, target), torch.tensor((2 / 3 + 1) / 2))


def test_sampled_ranks_are_unbiased(case):
    input, weight, bias, target = case
    exact = ranks(input, weight, target, bias)
    random = torch.Generator().manual_seed(1)
    found = torch.stack(
        [sampled_ranks(input, weight, target, bias, num_samples=4, generator=random) for _ in range(1000)]
    )
    error = (found.mean(0) - exact) / (found.std(0) / 1000**0.5).clamp(min=1e-9)
    assert float(error.abs().max()) < 4.0


def test_recall_of_sampled_ranks_is_biased():
    """Random scores: recall@5 of 40 classes is 1/8. Of four samples none is above the target with probability 1/5."""
    torch.manual_seed(0)
    input, weight, target = torch.randn(4000, D), torch.randn(V, D), torch.randint(V, (4000,))
    exact = (ranks(input, weight, target) <= 5).float().mean()
    sampled = (sampled_ranks(input, weight, target, num_samples=4) <= 5).float().mean()
    assert abs(float(exact) - 1 / 8) < 0.02
    assert abs(float(sampled) - 1 / 5) < 0.02
