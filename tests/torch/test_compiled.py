"""ncelm.torch.compiled: the kernels give the results of PyTorch's operations, for any number of threads."""

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

from ncelm.torch import NCELoss, Noise, RankingNCELoss, RowwiseAdagrad, SparseSGD, compiled, functional  # noqa: E402
from ncelm.torch.scores import NCE  # noqa: E402

V, D, N = 300, 37, 200


@pytest.fixture(autouse=True)
def settings():
    torch.sparse.check_sparse_tensor_invariants.disable()  # the default; PyTorch warns if it is not set explicitly
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def trained(kind, optimizer, k, rows=N, **options):
    """Return loss, gradients and updated parameters of two steps."""
    torch.manual_seed(0)
    loss = kind(D, V, 1.0 / torch.arange(1, V + 1), k, **options)
    update, values = optimizer(loss.parameters(), lr=0.3), []
    for _ in range(2):
        hidden = (2.0 * torch.randn(rows, D)).requires_grad_()
        update.zero_grad()
        value = loss(hidden, torch.randint(V, (rows,)))
        value.backward()
        update.step()
        gradients = [parameter.grad for parameter in loss.parameters()]
        dense = [gradient.to_dense() if gradient.is_sparse else gradient for gradient in gradients]
        values += [value.detach(), hidden.grad, *dense, *(p.detach().clone() for p in loss.parameters())]
    return values


@pytest.mark.parametrize("kind", [NCELoss, RankingNCELoss])
@pytest.mark.parametrize("optimizer", [SparseSGD, RowwiseAdagrad])
@pytest.mark.parametrize("k", [1, 7, 25])
@pytest.mark.parametrize(
    "options",
    [{"sparse": True}, {"sparse": False}, {"sparse": True, "bias": False}, {"sparse": True, "shared_noise": True}],
    ids=lambda options: "-".join(options),
)
def test_kernels_equal_the_operations_of_pytorch(monkeypatch, kind, optimizer, k, options):
    found = trained(kind, optimizer, k, **options)
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "supports", lambda *tensors: False)
        expected = trained(kind, optimizer, k, **options)
    for value, other in zip(found, expected, strict=True):
        torch.testing.assert_close(value, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("openmp", [True, False], ids=["threads of OpenMP", "threads of Python"])
@pytest.mark.parametrize("rows", [0, 1, 31, 500])
def test_the_number_of_threads_does_not_change_a_bit(monkeypatch, rows, openmp):
    monkeypatch.setattr(compiled, "SMALL", 0)
    if not openmp:
        monkeypatch.setattr(compiled, "_openmp", lambda: None)
    elif compiled._openmp() is None:
        pytest.skip("PyTorch does not use GNU OpenMP here")
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(trained(NCELoss, SparseSGD, 9, rows, sparse=True))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_gradients_are_summed_by_class():
    loss = NCELoss(D, V, torch.ones(V), 5, sparse=True)
    update = RowwiseAdagrad(loss.parameters(), lr=0.1)
    loss(torch.randn(N, D), torch.randint(V, (N,))).backward()
    for parameter in loss.parameters():
        classes = parameter.grad._indices()[0]
        assert (classes[1:] > classes[:-1]).all()
    update.step()
    assert all(parameter.grad.is_coalesced() for parameter in loss.parameters())  # without sorting them


@pytest.mark.parametrize("scale", [1.0, 20.0, 200.0])
def test_nce_of_scores_of_any_size(scale):
    torch.manual_seed(0)
    scores = [scale * torch.randn(N), scale * torch.randn(N, 25)]
    log_noise = [torch.randn(N), torch.randn(N, 25)]
    results = []
    for function in (
        NCE.apply,
        lambda *all: functional.nce_loss(*(t.double() for t in all), reduction="none"),
    ):
        given = [each.clone().requires_grad_() for each in scores]
        losses = function(*given, *log_noise)
        losses.mul(torch.arange(N)).sum().backward()
        results.append([losses.float(), *(each.grad for each in given)])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("n", "k"), [(0, 3), (1, 1), (200, 50)])
def test_rows_and_scores_of_shared_samples(n, k, bias):
    torch.manual_seed(0)
    input, weight = torch.randn(n, D), torch.randn(V, D)
    biases = torch.randn(V) if bias else None
    classes = torch.randint(V, (n + k,))
    rows, found, scores = compiled.gather_rows(input, weight, biases, classes)
    assert torch.equal(rows, weight[classes])
    assert torch.equal(found, biases[classes] if bias else torch.zeros(n + k))
    torch.testing.assert_close(scores, (input * rows[:n]).sum(1) + found[:n], rtol=1e-5, atol=1e-5)


def test_losses_of_logits_of_any_size():
    values = [-1e4, -100.0, -88.0, -20.0, -1.0, -1e-4, -0.0, 1e-4, 1.0, 20.0, 88.0, 100.0, 1e4]
    values += [float("inf"), -float("inf"), float("nan")]
    noise = torch.tensor(values).unsqueeze(1).repeat(5, 1)  # one sample per example: errors cannot hide in a sum
    targets = torch.full((len(noise),), -1e4)
    expected = torch.nn.functional.softplus(noise.double()).sum(1)
    derivatives = noise.double().sigmoid()
    losses = compiled.nce_losses(targets, noise, torch.zeros(1))
    torch.testing.assert_close(losses.double(), expected, rtol=1e-6, atol=1e-30, equal_nan=True)
    torch.testing.assert_close(noise.double(), derivatives, rtol=1e-6, atol=1e-30, equal_nan=True)
    losses = compiled.nce_losses(logits := torch.tensor(values), torch.zeros(len(values), 2), torch.full((2,), -1e4))
    torch.testing.assert_close(losses.double(), expected[: len(values)], rtol=1e-6, atol=1e-30, equal_nan=True)
    torch.testing.assert_close(logits.double(), derivatives[: len(values), 0], rtol=1e-6, atol=1e-30, equal_nan=True)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shape", [(V,), (V, D)])
def test_rows_that_occur_again_are_added_in_order(monkeypatch, shape, threads):
    monkeypatch.setattr(compiled, "SMALL", 0)
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    table, rows = torch.randn(shape), torch.randint(20, (1000,))
    values, expected = torch.randn(1000, *shape[1:]), table.clone()
    for row, value in zip(rows, values, strict=True):
        expected[row] += torch.tensor(-0.3) * value
    compiled.update_rows(table, rows, values, -0.3)
    torch.testing.assert_close(table, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "given", [torch.zeros(4)[::2], torch.zeros(2, dtype=torch.float64)], ids=["strided", "float64"]
)
def test_a_kernel_checks_its_arguments(given):
    from ncelm.kernels import pairs

    with pytest.raises(TypeError, match="nce_losses needs a contiguous tensor of float32"):
        compiled._run(pairs.nce_losses, 0, given, torch.zeros(2, 1), torch.zeros(1), torch.zeros(2))


@pytest.mark.parametrize("shared", [False, True])
def test_tensors_with_any_strides_and_integers_of_any_size(shared):
    loss = NCELoss(D, V, torch.ones(V), 5, sparse=True, shared_noise=shared)
    hidden, target, found = torch.randn(N, D), torch.randint(V, (2 * N,)), []
    sample = loss.noise.sample
    log_prob = loss.noise.log_prob
    loss.noise.log_prob = lambda words, before=None: log_prob(words.long())
    for strided in (False, True):
        torch.manual_seed(1)
        if strided:
            loss.noise.sample = lambda *shape, **options: sample(*shape, **options).int()
            given = hidden.T.contiguous().T, target.int()[::2]
        else:
            given = hidden, target[::2].clone()
        found.append(loss(*given))
    torch.manual_seed(1)
    found.append(loss(hidden, target[::2]))
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


def test_draws_are_those_of_the_alias_table(monkeypatch):
    noise = Noise(1.0 / torch.arange(1, V + 1))
    torch.manual_seed(0)
    found = noise.sample((50, 40))
    monkeypatch.setattr(compiled, "supports", lambda *tensors: False)
    torch.manual_seed(0)
    assert torch.equal(found, noise.sample((50, 40)))


@pytest.mark.parametrize("wrong", [-1, V])
def test_indices_outside_a_table_are_errors(wrong):
    loss = NCELoss(D, V, torch.ones(V), 5, sparse=True, validate=False, ignore_index=-100)
    loss.noise.log_prob = lambda classes, before=None: torch.zeros(classes.shape)
    loss.noise.sample = lambda shape, before=None, generator=None: torch.full(shape, wrong)
    with pytest.raises(IndexError, match="not in the table"):
        loss(torch.randn(N, D), torch.zeros(N, dtype=torch.int64))
    table = torch.nn.Parameter(torch.zeros(V, D))
    table.grad = torch.sparse_coo_tensor(
        torch.tensor([[wrong]]), torch.ones(1, D), (V, D), check_invariants=False, is_coalesced=True
    )
    with pytest.raises(IndexError, match="not in the table"):
        SparseSGD([table], lr=0.1).step()


def test_an_update_before_the_backward_pass_is_an_error():
    loss = NCELoss(D, V, torch.ones(V), 5, sparse=True)
    optimizer = SparseSGD(loss.parameters(), lr=0.1)
    first, second = (loss(torch.randn(N, D), torch.randint(V, (N,))) for _ in range(2))
    first.backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        second.backward()
