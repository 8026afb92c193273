"""ncelm.torch's losses: gradients, agreement with the core and the reference, limits, statistics, bad input."""

import copy
import itertools
import subprocess
import sys

import numpy as np
import pytest
from tests.helpers import random_distribution

torch = pytest.importorskip("torch", reason="needs the extra `torch`")
torch.set_num_threads(1)  # tensors are small here: threads would wait for each other

from ncelm import noise as core  # noqa: E402
from ncelm.losses import functions as estimators  # noqa: E402
from ncelm.losses import reference as ref  # noqa: E402
from ncelm.text.prepare import prepare  # noqa: E402
from ncelm.text.store import TokenStore  # noqa: E402
from ncelm.torch import (  # noqa: E402
    BigramNoise,
    ImportanceSamplingLoss,
    NCELoss,
    Noise,
    importance_sampling_loss,
    nce_loss,
)

N, V, D, K = 5, 11, 4, 3
LOSSES = {"nce": NCELoss, "importance": ImportanceSamplingLoss}


@pytest.fixture
def case():
    random = np.random.default_rng(1)
    noise = random_distribution(random, V)
    return {
        "scores": random.normal(size=(N, V)),
        "targets": random.integers(V, size=N),
        "samples": random.integers(V, size=(N, K)),
        "noise": noise,
    }


def picked(case):
    """Scores and log Pn of targets and noise, as tensors."""
    rows, log_noise = np.arange(N), np.log(case["noise"])
    arrays = (
        case["scores"][rows, case["targets"]],
        case["scores"][rows[:, None], case["samples"]],
        log_noise[case["targets"]],
        log_noise[case["samples"]],
    )
    return [torch.tensor(array) for array in arrays]


def double(kind, **options):
    torch.manual_seed(0)
    weights = torch.arange(1, V + 1, dtype=torch.float64)
    return LOSSES[kind](D, V, weights, K, dtype=torch.float64, **options)


def batch(*shape):
    random = torch.Generator().manual_seed(3)
    hidden = torch.randn(*shape, D, dtype=torch.float64, generator=random).requires_grad_()
    return hidden, torch.randint(V, shape, generator=random)


def seeded():
    return torch.Generator().manual_seed(7)


# -- functions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [0.0, 0.7])
def test_nce_loss_is_the_core_s_and_the_reference_s(case, shift):
    scores = picked(case)
    ours = nce_loss(*scores, log_normalizer=shift, reduction="none")
    t, n, log_t, log_n = (tensor.numpy() for tensor in scores)
    expected, *_ = estimators.nce(t, n, log_t + np.log(K), log_n + np.log(K), shift)
    np.testing.assert_allclose(ours, expected, rtol=1e-12)
    for e in range(N):
        arguments = (case["scores"][e], case["targets"][e], case["samples"][e], case["noise"], shift)
        assert float(ours[e]) == pytest.approx(-ref.eq13_objective(*arguments))
    assert float(nce_loss(*scores, log_normalizer=shift)) == pytest.approx(expected.mean())
    assert float(nce_loss(*scores, log_normalizer=shift, reduction="sum")) == pytest.approx(expected.sum())


def test_importance_sampling_loss_is_the_core_s(case):
    t, n, _, log_n = picked(case)
    losses, effective = importance_sampling_loss(t, n, log_n, reduction="none")
    expected, _, _, sizes = estimators.importance_sampling(t.numpy(), n.numpy(), log_n.numpy())
    np.testing.assert_allclose(losses, expected, rtol=1e-12)
    np.testing.assert_allclose(effective, sizes, rtol=1e-12)


def test_gradients_by_scores_are_the_core_s(case):
    t, n, log_t, log_n = picked(case)
    t.requires_grad_()
    n.requires_grad_()
    nce_loss(t, n, log_t, log_n, reduction="sum").backward()
    numbers = [tensor.detach().numpy() for tensor in (t, n, log_t, log_n)]
    _, by_target, by_noise = estimators.nce(numbers[0], numbers[1], numbers[2] + np.log(K), numbers[3] + np.log(K))
    np.testing.assert_allclose(t.grad, by_target, rtol=1e-12)
    np.testing.assert_allclose(n.grad, by_noise, rtol=1e-12)


# -- modules -----------------------------------------------------------------------------------------------------------

OPTIONS = [
    {"shared_noise": shared, "bias": bias, "reduction": reduction}
    for shared, bias, reduction in itertools.product((False, True), (False, True), ("mean", "sum", "none"))
]


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(str(v) for v in o.values()))
@pytest.mark.parametrize("training", [True, False])
def test_gradcheck(kind, options, training):
    loss = double(kind, **options).train(training)
    hidden, target = batch(2, 3)
    target[0, 1] = loss.ignore_index
    names, parameters = zip(*loss.named_parameters(), strict=True)

    def value(hidden, *parameters):
        values = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(loss, values, (hidden, target), {"generator": seeded()} if training else {})

    assert torch.autograd.gradcheck(value, (hidden, *parameters))


@pytest.mark.parametrize("normalizer", ["scalar", "context"])
def test_gradcheck_of_learned_constants(normalizer):
    loss = double("nce", normalizer=normalizer, num_contexts=3 if normalizer == "context" else 0)
    hidden, target = batch(2, 3)
    ids = torch.tensor([[0, 1, 2], [2, 1, 0]])

    def value(constants):
        arguments = {"context_ids": ids, "generator": seeded()}
        return torch.func.functional_call(loss, {"log_normalizer": constants}, (hidden.detach(), target), arguments)

    assert torch.autograd.gradcheck(value, (loss.log_normalizer.detach().requires_grad_(),))


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("training", [True, False])
def test_gradcheck_of_tied_weights(kind, training):
    """The table is an embedding too, with a row to spare: its gradient has two parts."""
    random = torch.Generator().manual_seed(5)
    table = torch.nn.Parameter(torch.randn(V + 1, D, dtype=torch.float64, generator=random))
    loss = double(kind, weight=table).train(training)
    words, (_, target) = torch.randint(V + 1, (2, 3), generator=random), batch(2, 3)

    def value(table):
        hidden = torch.nn.functional.embedding(words, table)
        arguments = {"generator": seeded()} if training else {}
        return torch.func.functional_call(loss, {"weight": table}, (hidden, target), arguments)

    assert torch.autograd.gradcheck(value, (table,))


@pytest.mark.parametrize("kind", LOSSES)
def test_gradcheck_with_bigram_noise(kind):
    random = np.random.default_rng(6)
    offsets = np.append(np.arange(V + 1) * 4, 4 * V)  # four followers each, and none of the out-of-sentence word
    followers = np.sort(random.integers(V, size=(V, 4)), axis=1).ravel().astype(np.int32)
    known = core.BigramNoise(core.Noise.from_counts(np.arange(1, V + 1)), 2.0, followers, offsets)
    noise = BigramNoise(known, dtype=torch.float64)
    loss = LOSSES[kind](D, V, noise, K, dtype=torch.float64)
    hidden, target = batch(2, 3)

    def value(hidden, weight, bias):
        values = {"weight": weight, "bias": bias}
        arguments = {"before": target.flip(0), "generator": seeded()}
        return torch.func.functional_call(loss, values, (hidden, target), arguments)

    assert torch.autograd.gradcheck(value, (hidden, loss.weight, loss.bias))


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("shared", [False, True])
def test_sparse_gradients_are_the_dense_ones(kind, shared):
    hidden, target = batch(2, 3)
    gradients = []
    for sparse in (False, True):
        loss = double(kind, shared_noise=shared, sparse=sparse)
        loss(hidden, target, generator=seeded()).backward()
        assert loss.weight.grad.is_sparse == loss.bias.grad.is_sparse == sparse
        gradients.append([p.grad.to_dense() if sparse else p.grad for p in (loss.weight, loss.bias)])
    for dense, sparse in zip(*gradients, strict=True):
        torch.testing.assert_close(sparse, dense)


def test_the_module_is_the_function_of_its_scores():
    loss = double("nce")
    hidden, target = batch(N)
    noise = loss.noise.sample((N, K), generator=seeded())
    scores = hidden @ loss.weight.T + loss.bias
    expected = nce_loss(
        scores.gather(1, target[:, None])[:, 0],
        scores.gather(1, noise),
        loss.noise.log_prob(target),
        loss.noise.log_prob(noise),
    )
    torch.testing.assert_close(loss(hidden, target, generator=seeded()), expected)


@pytest.mark.parametrize("kind", LOSSES)
def test_in_evaluation_the_loss_is_the_exact_negative_log_likelihood(kind, monkeypatch):
    monkeypatch.setattr("ncelm.torch.losses.EXACT_SCORES", 2 * V)  # two rows at a time
    loss = double(kind).eval()
    hidden, target = batch(3, N)
    scores = hidden @ loss.weight.T + loss.bias
    expected = torch.nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())
    torch.testing.assert_close(loss(hidden, target), expected)
    torch.testing.assert_close(loss.log_prob(hidden), torch.log_softmax(scores, -1))
    assert torch.equal(loss.predict(hidden), scores.argmax(-1))


def test_ignored_targets_leave_no_trace():
    hidden, target = batch(2, 3)
    loss = double("nce", reduction="none", shared_noise=True)
    kept = loss(hidden, target, generator=seeded())
    target[1, 2] = -100
    ignored = loss(hidden, target, generator=seeded())
    assert ignored[1, 2] == 0.0
    torch.testing.assert_close(ignored[0], kept[0])
    loss.reduction = "mean"
    mean = loss(hidden, target, generator=seeded())
    torch.testing.assert_close(mean, ignored.sum() / 5)
    mean.backward()
    assert not hidden.grad[1, 2].any()
    assert hidden.grad[0].any()


@pytest.mark.parametrize("training", [True, False])
def test_what_stands_beside_an_ignored_target_may_be_nan(training):
    hidden, target = batch(2, 3)
    target[1, 2] = -100
    loss = double("nce").train(training)
    clean = loss(hidden, target, generator=seeded())
    spoilt = hidden.detach().clone()
    spoilt[1, 2] = torch.nan
    found = loss(spoilt, target, generator=seeded())
    torch.testing.assert_close(found, clean)
    found.backward()
    assert torch.isfinite(loss.weight.grad).all()


def test_targets_may_be_integers_of_any_size():
    hidden, target = batch(2, 3)
    for training in (True, False):
        loss = double("nce").train(training)
        found = loss(hidden, target.to(torch.int32), generator=seeded())
        torch.testing.assert_close(found, loss(hidden, target, generator=seeded()))


def test_tied_weights_are_the_embedding_s_own():
    embedding = torch.nn.Embedding(V + 1, D)  # one row more: padding
    loss = NCELoss(D, V, torch.ones(V), weight=embedding.weight)
    assert loss.weight is embedding.weight
    loss(embedding(torch.tensor([1, 2])), torch.tensor([3, 4])).backward()
    assert embedding.weight.grad is not None
    assert not embedding.weight.grad[V].any()
    assert loss.log_prob(torch.zeros(D)).shape == (V,)


def test_state_dict_has_the_noise_and_copies_work():
    loss = NCELoss(D, V, torch.arange(1, V + 1))
    other = NCELoss(D, V, torch.ones(V))
    other.load_state_dict(loss.state_dict())
    torch.testing.assert_close(other.noise.log_probabilities, loss.noise.log_probabilities)
    hidden, target = torch.randn(N, D), torch.randint(V, (N,))
    for twin in (other, copy.deepcopy(loss)):
        torch.testing.assert_close(twin(hidden, target, generator=seeded()), loss(hidden, target, generator=seeded()))


def test_noise_is_never_kept_in_half_precision():
    exact = NCELoss(D, V, torch.arange(1, V + 1)).noise
    for loss in (
        NCELoss(D, V, torch.arange(1, V + 1), dtype=torch.bfloat16),
        NCELoss(D, V, torch.arange(1, V + 1)).bfloat16(),
        NCELoss(D, V, torch.arange(1, V + 1)).to(torch.float16),
        NCELoss(D, V, torch.arange(1, V + 1, dtype=torch.bfloat16)),  # counts may come as they like
    ):
        for name, buffer in exact.named_buffers():
            torch.testing.assert_close(getattr(loss.noise, name), buffer, rtol=0, atol=0)
    assert NCELoss(D, V, torch.ones(V)).double().noise.keep.dtype == torch.float64


@pytest.mark.parametrize("kind", LOSSES)
def test_under_autocast_logits_are_float32(kind):
    loss = LOSSES[kind](D, V, torch.ones(V), K)
    hidden, target = torch.randn(N, D), torch.randint(V, (N,))
    exact = loss(hidden, target, generator=seeded())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = loss(hidden, target, generator=seeded())
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, exact)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert loss.eval()(hidden.bfloat16(), target).dtype == torch.float32


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # PyTorch's own, between compiled parts
@pytest.mark.parametrize("options", [{}, {"shared_noise": True}, {"sparse": True}], ids=str)
def test_torch_compile(options):
    loss = NCELoss(D, V, torch.arange(1, V + 1), 2000, **options)
    hidden, target = torch.randn(50, D, requires_grad=True), torch.randint(V, (50,))
    compiled = torch.compile(loss, backend="aot_eager")
    value = compiled(hidden, target)
    value.backward()
    assert loss.weight.grad is not None
    # other noise words, but many of them
    torch.testing.assert_close(value, loss(hidden, target), rtol=0.05, atol=0)


# -- noise -------------------------------------------------------------------------------------------------------------


def test_noise_is_drawn_as_often_as_it_says():
    torch.manual_seed(0)
    noise = Noise([1.0, 2.0, 3.0, 94.0])
    n = 200_000
    counts = torch.bincount(noise.sample((n // 2, 2)).flatten(), minlength=4)
    expected = noise.log_prob(torch.arange(4)).exp() * n
    assert float(((counts - expected) ** 2 / expected).sum()) < 16.27  # χ², three degrees of freedom, p = 0.001


@pytest.fixture
def store(tmp_path) -> TokenStore:
    (tmp_path / "text").write_text("a b c\na b b\nc a b\n" * 5)
    return prepare(train=tmp_path / "text", out=tmp_path / "store", boundary="sentence")


def test_bigram_noise_is_the_core_s(store):
    known = core.BigramNoise.from_store(store, 2.0)
    noise = BigramNoise(known, dtype=torch.float64)
    size = len(store.vocabulary)
    words = torch.arange(size)
    torch.manual_seed(0)
    for before in range(size + 1):
        expected = known.log_probabilities(before)
        np.testing.assert_allclose(noise.log_prob(words, torch.tensor([before])), expected, rtol=1e-10)
        n = 50_000
        drawn = torch.bincount(noise.sample((n,), torch.tensor([before])), minlength=size).numpy()
        chi2 = np.sum((drawn - n * np.exp(expected)) ** 2 / (n * np.exp(expected)))
        assert chi2 < 18.47  # four degrees of freedom, p = 0.001


def test_bigram_noise_in_the_loss(store):
    noise = BigramNoise(core.BigramNoise.from_store(store, 2.0))
    loss = NCELoss(D, noise.num_classes, noise)
    hidden, target = torch.randn(2, 3, D), torch.randint(noise.num_classes, (2, 3))
    assert torch.isfinite(loss(hidden, target, before=torch.zeros_like(target)))
    with pytest.raises(ValueError, match="give the words `before`"):
        loss(hidden, target)
    with pytest.raises(ValueError, match="any noise but bigram"):
        NCELoss(D, noise.num_classes, noise, shared_noise=True)
    other = BigramNoise(core.BigramNoise.from_store(store, 500.0))
    other.load_state_dict(noise.state_dict())  # α too
    before = torch.zeros_like(target)
    torch.testing.assert_close(other.log_prob(target, before), noise.log_prob(target, before))


# -- limits and statistics ---------------------------------------------------------------------------------------------


def test_with_many_noise_words_the_gradient_is_that_of_maximum_likelihood():
    """Eq. 12, for a model that is normalised."""
    torch.manual_seed(0)
    hidden, target = batch(N)
    gradients = []
    for training, k in ((True, 200_000), (False, 1)):
        loss = double("nce", shared_noise=True).train(training)
        with torch.no_grad():
            loss.bias.zero_()
            loss.weight.mul_(0.0)
            loss.bias.sub_(np.log(V))  # all classes alike: Z = 1
        loss.num_noise = k
        loss(hidden, target).backward()
        gradients.append(loss.bias.grad)
    torch.testing.assert_close(gradients[0], gradients[1], atol=3e-3, rtol=0)


@pytest.mark.parametrize("options", [{}, {"shared_noise": True}, {"normalizer": "scalar"}], ids=str)
def test_nce_finds_a_known_distribution(options):
    torch.manual_seed(0)
    wanted = torch.tensor(random_distribution(np.random.default_rng(0), 6), dtype=torch.float32)
    loss = NCELoss(1, 6, torch.ones(6), 300 if options.get("shared_noise") else 50, **options)
    optimizer = torch.optim.Adagrad(loss.parameters(), lr=0.3)
    for _ in range(400):
        target = torch.multinomial(wanted, 500, replacement=True)
        optimizer.zero_grad()
        loss(torch.zeros(500, 1), target).backward()
        optimizer.step()
    found = loss.log_prob(torch.zeros(1)).exp()
    torch.testing.assert_close(found, wanted, atol=0.02, rtol=0)
    constant = 0.0 if loss.log_normalizer is None else loss.log_normalizer[0]
    assert abs((torch.logsumexp(loss.bias, 0) + constant).item()) < 0.1  # it normalises itself


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("training", [True, False])
def test_bad_batches_are_refused_in_a_line(kind, training):
    loss = LOSSES[kind](D, V, torch.ones(V)).train(training)
    hidden = torch.zeros(2, D)
    with pytest.raises(IndexError, match=f"target {V} is not a class: they are 0 to {V - 1}"):
        loss(hidden, torch.tensor([0, V]))
    with pytest.raises(IndexError, match="target -1 is not"):
        loss(hidden, torch.tensor([0, -1]))
    with pytest.raises(ValueError, match="the batch is empty"):
        loss(torch.zeros(0, D), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="every target is ignore_index, -100"):
        loss(hidden, torch.tensor([-100, -100]))
    with pytest.raises(ValueError, match="NaN or infinity"):
        loss(torch.full((2, D), float("nan")), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"input is \(2, 4\) and target \(3,\)"):
        loss(hidden, torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match=r"input is \(\) and target \(\)"):
        loss(torch.tensor(0.0), torch.tensor(0))
    with pytest.raises(TypeError, match=r"target is torch\.float32"):
        loss(hidden, torch.zeros(2))
    loss.reduction = "sum"
    assert loss(torch.zeros(0, D), torch.zeros(0, dtype=torch.int64)).item() == 0.0


def test_bad_settings_are_refused_in_a_line():
    from ncelm.errors import NcelmError

    with pytest.raises(NcelmError, match="noise weight of word 1 is 0"):
        NCELoss(D, 3, [1.0, 0.0, 1.0])
    with pytest.raises(ValueError, match="noise is over 3 classes, and num_classes is 4"):
        NCELoss(D, 4, [1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="num_noise is 0"):
        NCELoss(D, 3, [1.0, 1.0, 1.0], 0)
    with pytest.raises(ValueError, match="choose mean, sum or none"):
        NCELoss(D, 3, [1.0, 1.0, 1.0], reduction="median")
    with pytest.raises(ValueError, match="weight is"):
        NCELoss(D, 3, [1.0, 1.0, 1.0], weight=torch.nn.Parameter(torch.zeros(2, D)))
    for name, tensor in (("weight", torch.zeros(3, D)), ("bias", torch.zeros(3))):
        with pytest.raises(TypeError, match=f"{name} is a tensor and no nn.Parameter"):
            NCELoss(D, 3, [1.0, 1.0, 1.0], **{name: tensor})
    with pytest.raises(ValueError, match="needs num_contexts"):
        NCELoss(D, 3, [1.0, 1.0, 1.0], normalizer="context")
    with pytest.raises(ValueError, match="give context_ids"):
        NCELoss(D, 3, [1.0, 1.0, 1.0], normalizer="context", num_contexts=2)(
            torch.zeros(1, D), torch.zeros(1, dtype=torch.int64)
        )


def test_without_torch_a_line_names_the_extra():
    """Python's own way to say that a module is not there: None in its place."""
    script = "import sys; sys.modules['torch'] = None; import ncelm.torch"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'ncelm[torch]'" in done.stderr.splitlines()[-1]
