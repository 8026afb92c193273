"""ncelm.torch.in_batch: agreement with the function, options, recovery of a known distribution."""

import numpy as np
import pytest
from tests.helpers import random_distribution

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

from ncelm.torch import InBatchLoss, in_batch_loss  # noqa: E402

N, D, V = 6, 4, 9


def batch():
    random = torch.Generator().manual_seed(0)
    query, item = (torch.randn(N, D, dtype=torch.float64, generator=random) for _ in range(2))
    return query.requires_grad_(), item.requires_grad_(), torch.tensor([3, 1, 3, 0, 8, 1])


def test_without_correction_it_is_the_softmax_over_the_batch():
    query, item, ids = batch()
    loss = InBatchLoss(temperature=0.5, remove_accidental_hits=False)
    expected = torch.nn.functional.cross_entropy(query @ item.T / 0.5, torch.arange(N))
    torch.testing.assert_close(loss(query, item, ids), expected)
    loss.label_smoothing = 0.1
    smooth = torch.nn.functional.cross_entropy(query @ item.T / 0.5, torch.arange(N), label_smoothing=0.1)
    torch.testing.assert_close(loss(query, item, ids), smooth)


def test_cosine_scores():
    query, item, ids = batch()
    loss = InBatchLoss(temperature=0.05, cosine=True)
    torch.testing.assert_close(loss(query, item, ids), loss(query * 3.0, item * 5.0, ids))


@pytest.mark.parametrize("uniform", [0, 5])
def test_it_equals_the_function_of_its_scores(uniform):
    query, item, ids = batch()
    loss = InBatchLoss(V).double()
    loss(query, item, ids)  # the first update
    loss.eval()  # no further one
    others = torch.randn(uniform, D, dtype=torch.float64)
    other_ids = torch.randint(V, (uniform,))
    options = {"uniform_item": others, "uniform_ids": other_ids} if uniform else {}
    everything = torch.cat([ids, other_ids])
    q = ((N - 1) * loss.frequencies.log_prob(everything).exp() + uniform / V) / (N - 1 + uniform)
    expected = in_batch_loss(
        query @ torch.cat([item, others]).T, q.log(), hits=ids.unsqueeze(1) == everything.unsqueeze(0)
    )
    torch.testing.assert_close(loss(query, item, ids, **options), expected)


@pytest.mark.parametrize("options", [{}, {"cosine": True, "temperature": 0.3}, {"label_smoothing": 0.1}], ids=str)
def test_gradcheck(options):
    query, item, ids = batch()
    loss = InBatchLoss(V, **options).double()
    loss(query, item, ids)
    loss.eval()
    ids[2] = -100
    more = {"uniform_item": torch.randn(3, D, dtype=torch.float64), "uniform_ids": torch.tensor([0, 1, 7])}
    assert torch.autograd.gradcheck(lambda q, i: loss(q, i, ids, **more), (query, item))


def test_ignored_pairs_and_sample_weights():
    query, item, ids = batch()
    kept = [0, 1, 3, 4, 5]
    expected = InBatchLoss(V, reduction="none").double()(query[kept], item[kept], ids[kept])
    ids[2] = -100
    spoilt = [tensor.detach().clone() for tensor in (query, item)]
    for tensor in spoilt:
        tensor[2] = torch.nan
    found = InBatchLoss(V, reduction="none").double()(*spoilt, ids)
    torch.testing.assert_close(found[kept], expected)
    assert found[2] == 0.0
    weights = torch.tensor([1.0, 2.0, 7.0, 0.0, 1.0, 1.0])
    mean = InBatchLoss(V).double()(*spoilt, ids, sample_weight=weights)
    torch.testing.assert_close(mean, (found * weights).sum() / 5.0)
    for empty in (torch.full_like(ids, -100), ids[:0]):
        vectors = [tensor[: len(empty)].detach().requires_grad_() for tensor in (query, item)]
        value = InBatchLoss(V).double()(*vectors, empty)
        assert value.item() == 0.0
        value.backward()
        assert not vectors[0].grad.any()


@pytest.mark.parametrize(("corrected", "uniform"), [(True, 0), (True, 40), (False, 0)])
def test_with_correction_it_recovers_a_known_distribution(corrected, uniform):
    """P(item | query) for three queries. Without correction the scores are relative to the frequencies of items."""
    torch.manual_seed(0)
    rng, size = np.random.default_rng(1), 5
    expected = torch.tensor(np.stack([random_distribution(rng, size) for _ in range(3)]), dtype=torch.float32)
    scores = torch.zeros(3, size, requires_grad=True)
    loss = InBatchLoss(size if corrected else None, rate=0.002, remove_accidental_hits=False)
    optimizer = torch.optim.Adagrad([scores], lr=0.2)
    items = torch.eye(size)
    for _ in range(600):
        queries = torch.randint(3, (60,))
        ids = torch.multinomial(expected[queries], 1).squeeze(1)
        more = {}
        if uniform:
            drawn = torch.randint(size, (uniform,))
            more = {"uniform_item": items[drawn], "uniform_ids": drawn}
        optimizer.zero_grad()
        loss(scores[queries], items[ids], ids, **more).backward()
        optimizer.step()
    error = float((torch.softmax(scores.detach(), 1) - expected).abs().max())
    assert error < 0.05 if corrected else error > 0.08


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # raised by PyTorch
def test_torch_compile_with_changing_batch_sizes():
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter, frames, values = CompileCounterWithBackend("aot_eager"), [], []
    for compiled in (True, False):
        torch.manual_seed(0)
        loss = InBatchLoss(V)
        function = torch.compile(loss, backend=counter, fullgraph=True, dynamic=True) if compiled else loss
        for size in (20, 11, 7, 5):
            query, item = torch.randn(size, D, requires_grad=True), torch.randn(size, D)
            value = function(query, item, torch.randint(V, (size,)))
            value.backward()
            values.append(torch.cat([value.detach().view(1), query.grad.flatten()]))
            frames.append(counter.frame_count)
    for found, expected in zip(values[:4], values[4:], strict=True):
        torch.testing.assert_close(found, expected)
    assert frames[1:4] == [frames[1]] * 3  # no compilation after the second size


def test_invalid_batches_are_rejected():
    query, item, ids = batch()
    for call, message in (
        (lambda: InBatchLoss()(query, item[:3], ids), r"item \(3, 4\)"),
        (lambda: InBatchLoss()(query, item, ids[:3]), r"item_ids \(3,\)"),
        (lambda: InBatchLoss()(query, item, ids, uniform_item=item), "both uniform_item and uniform_ids"),
        (lambda: InBatchLoss()(query, item, ids, uniform_item=item, uniform_ids=ids[:2]), "uniform_ids 2"),
        (lambda: InBatchLoss(temperature=0.0), "temperature is 0"),
        (lambda: InBatchLoss(label_smoothing=2.0), "label_smoothing is 2"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
