"""ncelm.torch.optim: sparse and dense gradients give the same parameters; agreement with PyTorch's Adagrad."""

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

from ncelm.torch import NCELoss, RowwiseAdagrad  # noqa: E402

D, V = 4, 11


@pytest.fixture(autouse=True)
def sparse_tensors():
    torch.sparse.check_sparse_tensor_invariants.disable()  # the default; PyTorch warns if it is not set explicitly


def trained(kind, sparse, **options):
    torch.manual_seed(0)
    loss = NCELoss(D, V, torch.arange(1, V + 1), 5, sparse=sparse, dtype=torch.float64)
    optimizer = kind(loss.parameters(), lr=0.1, **options)
    for _ in range(5):
        optimizer.zero_grad()
        loss(torch.randn(8, D, dtype=torch.float64), torch.randint(V, (8,))).backward()
        optimizer.step()
    return loss, optimizer


def test_sparse_and_dense_gradients_give_the_same_parameters():
    losses = (trained(RowwiseAdagrad, sparse)[0] for sparse in (True, False))
    for sparse, dense in zip(*(loss.parameters() for loss in losses), strict=True):
        torch.testing.assert_close(sparse, dense)


def test_rowwise_adagrad_by_hand():
    table = torch.nn.Embedding.from_pretrained(torch.zeros(3, 2), freeze=False, sparse=True)
    optimizer = RowwiseAdagrad(table.parameters(), lr=0.5, eps=0.0, initial_accumulator_value=1.0)
    table(torch.tensor([1, 1, 2])).mul(torch.tensor([1.0, 2.0])).sum().backward()  # gradients (2, 4) and (1, 2)
    optimizer.step()
    totals = torch.tensor([1.0, 1.0 + (4 + 16) / 2, 1.0 + (1 + 4) / 2])
    torch.testing.assert_close(optimizer.state[table.weight]["sum"], totals)
    gradients = torch.tensor([[0.0, 0.0], [2.0, 4.0], [1.0, 2.0]])
    torch.testing.assert_close(table.weight.detach(), -0.5 * gradients / totals.sqrt().unsqueeze(1))


def test_rowwise_adagrad_of_vectors_is_adagrad():
    found, expected = trained(RowwiseAdagrad, True, eps=1e-10)[0].bias, None
    torch.manual_seed(0)
    loss = NCELoss(D, V, torch.arange(1, V + 1), 5, sparse=True, dtype=torch.float64)
    both = [RowwiseAdagrad([loss.weight], lr=0.1, eps=1e-10), torch.optim.Adagrad([loss.bias], lr=0.1)]
    for _ in range(5):
        loss.zero_grad()
        loss(torch.randn(8, D, dtype=torch.float64), torch.randint(V, (8,))).backward()
        for optimizer in both:
            optimizer.step()
    expected = loss.bias
    torch.testing.assert_close(found, expected)


def test_the_state_has_one_number_per_row_and_is_saved():
    loss, optimizer = trained(RowwiseAdagrad, True)
    assert optimizer.state[loss.weight]["sum"].shape == (V,)
    other = RowwiseAdagrad(loss.parameters(), lr=0.1)
    other.load_state_dict(optimizer.state_dict())
    torch.testing.assert_close(other.state[loss.weight]["sum"], optimizer.state[loss.weight]["sum"])


def test_a_closure_is_called():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = RowwiseAdagrad([weight], lr=0.5)

    def closure():
        loss = weight.sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    torch.testing.assert_close(weight.detach(), torch.full((2,), 0.5))
    with pytest.raises(ValueError, match="lr is -1"):
        RowwiseAdagrad([weight], lr=-1.0)
