"""ncelm.torch.losses: gradients, options of the modules, recovery of distributions, errors."""

import copy
import inspect
import itertools
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from tests.helpers import random_distribution

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

from ncelm import noise as core  # noqa: E402
from ncelm.losses import reference as ref  # noqa: E402
from ncelm.torch import (  # noqa: E402
    BigramNoise,
    ImportanceSamplingLoss,
    NCELoss,
    NegativeSamplingLoss,
    RankingNCELoss,
    SampledSoftmaxLoss,
    UniqueNoise,
    clip_grad_norm_,
    nce_loss,
    ranking_nce_loss,
)

N, V, D, K = 5, 11, 4, 3
LOSSES = {
    "nce": NCELoss,
    "nce-penalty": partial(NCELoss, log_z_penalty=0.3),
    "ranking": RankingNCELoss,
    "ranking-penalty": partial(RankingNCELoss, log_z_penalty=0.3),
    "sampled-softmax": SampledSoftmaxLoss,
    "sampled-softmax-smooth": partial(SampledSoftmaxLoss, label_smoothing=0.2, remove_accidental_hits=False),
    "negative-sampling": NegativeSamplingLoss,
    "negative-sampling-hits": partial(NegativeSamplingLoss, remove_accidental_hits=True),
    "importance": ImportanceSamplingLoss,
}
PLAIN = ["nce", "ranking", "sampled-softmax", "negative-sampling", "importance"]  # the classes, without options
FUNCTIONS = {"nce": nce_loss, "ranking": ranking_nce_loss}


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


# -- modules -----------------------------------------------------------------------------------------------------------

OPTIONS = [
    {"shared_noise": shared, "bias": bias, "reduction": reduction}
    for shared, bias, reduction in itertools.product((False, True), (False, True), ("mean", "sum", "none"))
]


# the penalty has no effect in evaluation mode
MODES = [(kind, training) for kind in LOSSES for training in (True, False) if training or "penalty" not in kind]


@pytest.mark.parametrize(("kind", "training"), MODES)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(str(v) for v in o.values()))
def test_gradcheck(kind, training, options):
    loss = double(kind, **options).train(training)
    hidden, target = batch(2, 3)
    target[0, 1] = loss.ignore_index
    names, parameters = zip(*loss.named_parameters(), strict=True)

    def value(hidden, *parameters):
        values = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(loss, values, (hidden, target), {"generator": seeded()} if training else {})

    assert torch.autograd.gradcheck(value, (hidden, *parameters))


@pytest.mark.parametrize("normalizer", ["scalar", "context"])
def test_gradcheck_of_learned_log_normalizers(normalizer):
    loss = double("nce-penalty", normalizer=normalizer, num_contexts=3 if normalizer == "context" else 0)
    hidden, target = batch(2, 3)
    ids = torch.tensor([[0, 1, 2], [2, 1, 0]])

    def value(log_normalizers):
        values, arguments = {"log_normalizer": log_normalizers}, {"context_ids": ids, "generator": seeded()}
        return torch.func.functional_call(loss, values, (hidden.detach(), target), arguments)

    assert torch.autograd.gradcheck(value, (loss.log_normalizer.detach().requires_grad_(),))


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("training", [True, False])
def test_gradcheck_of_tied_weights(kind, training):
    """The weight is an embedding too, with one more row: its gradient has two parts."""
    random = torch.Generator().manual_seed(5)
    table = torch.nn.Parameter(torch.randn(V + 1, D, dtype=torch.float64, generator=random))
    loss = double(kind, tied_weight=table).train(training)
    words, (_, target) = torch.randint(V + 1, (2, 3), generator=random), batch(2, 3)

    def value(table):
        hidden = torch.nn.functional.embedding(words, table)
        arguments = {"generator": seeded()} if training else {}
        return torch.func.functional_call(loss, {"weight": table}, (hidden, target), arguments)

    assert torch.autograd.gradcheck(value, (table,))


def bigram_noise(size):
    """Return bigram noise in which each word has four followers, and the out-of-sentence word none."""
    offsets = np.append(np.arange(size + 1) * 4, 4 * size)
    followers = np.sort(np.random.default_rng(6).integers(size, size=(size, 4)), axis=1).ravel().astype(np.int32)
    known = core.BigramNoise(core.Noise.from_counts(np.arange(1, size + 1)), 2.0, followers, offsets)
    return BigramNoise(known, dtype=torch.float64)


@pytest.mark.parametrize("kind", [kind for kind in LOSSES if "negative" not in kind])
def test_gradcheck_with_bigram_noise(kind):
    loss = LOSSES[kind](D, V, bigram_noise(V), K, dtype=torch.float64)
    hidden, target = batch(2, 3)

    def value(hidden, weight, bias):
        values = {"weight": weight, "bias": bias}
        arguments = {"before": target.flip(0), "generator": seeded()}
        return torch.func.functional_call(loss, values, (hidden, target), arguments)

    assert torch.autograd.gradcheck(value, (hidden, loss.weight, loss.bias))


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("shared", [False, True])
def test_sparse_gradients_equal_dense_ones(kind, shared):
    hidden, target = batch(2, 3)
    gradients = []
    for sparse in (False, True):
        loss = double(kind, shared_noise=shared, sparse=sparse)
        loss(hidden, target, generator=seeded()).backward()
        assert loss.weight.grad.is_sparse == loss.bias.grad.is_sparse == sparse
        gradients.append([p.grad.to_dense() if sparse else p.grad for p in (loss.weight, loss.bias)])
    for dense, sparse in zip(*gradients, strict=True):
        torch.testing.assert_close(sparse, dense)


@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("shared", [False, True])
def test_modules_equal_the_functions_of_their_scores(kind, shared):
    loss = double(kind, shared_noise=shared, log_z_penalty=0.3)
    hidden, target = batch(N)
    noise = loss.noise.sample((K,) if shared else (N, K), generator=seeded())
    scores = hidden @ loss.weight.T + loss.bias
    expected = FUNCTIONS[kind](
        scores.gather(1, target[:, None])[:, 0],
        scores[:, noise] if shared else scores.gather(1, noise),
        loss.noise.log_prob(target),
        loss.noise.log_prob(noise),
        log_z_penalty=0.3,
    )
    torch.testing.assert_close(loss(hidden, target, generator=seeded()), expected)


@pytest.mark.parametrize("kind", LOSSES)
def test_evaluation_mode_returns_the_exact_negative_log_likelihood(kind, monkeypatch):
    monkeypatch.setattr("ncelm.torch.exact.BLOCK_SCORES", 2 * V)  # two rows at a time
    loss = double(kind).eval()
    hidden, target = batch(3, N)
    scores = hidden @ loss.weight.T + loss.bias
    if "negative" in kind:  # P(w|h) ∝ Pn(w) exp(s(w, h))
        scores = scores + loss.noise.log_prob(torch.arange(V))
    expected = torch.nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())
    torch.testing.assert_close(loss(hidden, target), expected)
    torch.testing.assert_close(loss.log_prob(hidden), torch.log_softmax(scores, -1))
    assert torch.equal(loss.predict(hidden), scores.argmax(-1))


@pytest.mark.parametrize("kind", PLAIN)
def test_the_exact_likelihood_in_blocks_has_the_gradient_of_the_softmax(kind, monkeypatch):
    """Blocks of two examples and four classes."""
    hidden, target = batch(N)
    gradients = []
    for block in (None, 2):
        if block:
            monkeypatch.setattr("ncelm.torch.exact.BLOCK_SCORES", 4 * block)
            monkeypatch.setattr("ncelm.torch.exact.BLOCK_EXAMPLES", block)
        loss, hidden.grad = double(kind), None
        loss.nll(hidden, target).backward()
        gradients.append([hidden.grad, loss.weight.grad, loss.bias.grad])
    for whole, blocks in zip(*gradients, strict=True):
        torch.testing.assert_close(blocks, whole)
    assert torch.autograd.gradcheck(lambda h: loss.nll(h, target), (hidden,))


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("training", [True, False])
def test_the_loss_of_several_targets_is_the_mean_of_theirs(kind, training):
    hidden, _ = batch(2, 3)
    target = torch.tensor([[[1, 2], [3, -100], [-100, -100]], [[4, 4], [5, 6], [7, 8]]])
    options = {"shared_noise": True, "reduction": "none"}
    if "hits" in kind or kind == "sampled-softmax":  # other targets would be left out of one and not of the other
        options["remove_accidental_hits"] = False
    loss = double(kind, **options).train(training)
    found = loss(hidden, target, generator=seeded())
    first, second = (loss(hidden, target[..., i], generator=seeded()) for i in range(2))
    expected = torch.stack([first, second]).mean(0)
    expected[0, 1], expected[0, 2] = first[0, 1], 0.0
    torch.testing.assert_close(found, expected)
    loss.reduction = "mean"
    torch.testing.assert_close(loss(hidden, target, generator=seeded()), expected.sum() / 5)  # of six examples


def test_all_targets_of_an_example_are_accidental_hits():
    loss = SampledSoftmaxLoss(D, 3, torch.ones(3), 50, shared_noise=True)
    hidden, both = torch.randn(4, D), torch.tensor([[0, 1]]).expand(4, 2)
    scores = hidden @ loss.weight.T + loss.bias  # 0 and 1 are left out: only the target and class 2 remain
    samples = loss.noise.sample((50,), generator=seeded())
    rest = scores[:, 2] + torch.log((samples == 2).sum() * 3 / 50)
    expected = torch.stack([torch.logaddexp(scores[:, i], rest) - scores[:, i] for i in (0, 1)]).mean()
    torch.testing.assert_close(loss(hidden, both, generator=seeded()), expected)


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("training", [True, False])
def test_sample_weights(kind, training):
    hidden, target = batch(2, 3)
    target[0, 1] = -100
    weights = torch.tensor([[1.0, 5.0, 0.0], [2.0, 0.5, 1.0]], dtype=torch.float64)
    values = {}
    for reduction in ("none", "sum", "mean"):
        loss = double(kind, reduction=reduction).train(training)
        values[reduction] = loss(hidden, target, sample_weight=weights, generator=seeded())
    plain = double(kind, reduction="none").train(training)(hidden, target, generator=seeded())
    torch.testing.assert_close(values["none"], plain * weights)
    torch.testing.assert_close(values["sum"], (plain * weights).sum())
    torch.testing.assert_close(values["mean"], (plain * weights).sum() / 4.5)  # without that of the ignored target
    assert loss(hidden, target, sample_weight=torch.zeros(2, 3)) == 0.0
    with pytest.raises(ValueError, match=r"sample_weight is \(2,\): it must be \(2, 3\)"):
        loss(hidden, target, sample_weight=torch.ones(2))


def test_distributed_data_parallel_recognizes_sparse_gradients():
    """It expects them of the parameters of an nn.Embedding with sparse=True; tests/torch/two_ranks.py trains."""
    for sparse in (False, True):
        loss = NCELoss(D, V, torch.ones(V), sparse=sparse, normalizer="scalar")
        assert isinstance(loss, torch.nn.Embedding)
        assert loss.sparse == sparse
        loss(torch.randn(N, D), torch.randint(V, (N,))).backward()
        assert all(parameter.grad.is_sparse == sparse for parameter in loss.parameters())


@pytest.mark.parametrize("kind", LOSSES)
def test_ignored_targets_have_no_effect(kind):
    hidden, target = batch(2, 3)
    loss = double(kind, reduction="none", shared_noise=True)
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
def test_the_input_of_an_ignored_target_may_be_nan(training):
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


def test_targets_may_have_any_integer_type():
    hidden, target = batch(2, 3)
    for training in (True, False):
        loss = double("nce").train(training)
        found = loss(hidden, target.to(torch.int32), generator=seeded())
        torch.testing.assert_close(found, loss(hidden, target, generator=seeded()))


def test_tied_weights_are_shared_with_the_embedding():
    embedding = torch.nn.Embedding(V + 1, D)  # one more row: padding
    loss = NCELoss(D, V, torch.ones(V), tied_weight=embedding.weight)
    assert loss.weight is embedding.weight
    loss(embedding(torch.tensor([1, 2])), torch.tensor([3, 4])).backward()
    assert embedding.weight.grad is not None
    assert not embedding.weight.grad[V].any()
    assert loss.log_prob(torch.zeros(D)).shape == (V,)


def test_copies_and_state_dicts():
    loss = NCELoss(D, V, torch.arange(1, V + 1))
    other = NCELoss(D, V, torch.arange(1, V + 1))
    other.load_state_dict(loss.state_dict())
    hidden, target = torch.randn(N, D), torch.randint(V, (N,))
    for twin in (other, copy.deepcopy(loss)):
        torch.testing.assert_close(twin(hidden, target, generator=seeded()), loss(hidden, target, generator=seeded()))


def test_loading_a_checkpoint_does_not_change_the_noise():
    loss, other = NCELoss(D, V, torch.arange(1, V + 1)), NCELoss(D, V, torch.ones(V))
    other.load_state_dict(loss.state_dict())
    torch.testing.assert_close(other.noise.log_probabilities.exp(), torch.full((V,), 1 / V))
    assert set(loss.state_dict()) == {"weight", "bias"}
    # checkpoints of ncelm 0.1 have the noise
    former = loss.state_dict() | {f"noise.{name}": table for name, table in loss.noise.named_buffers()}
    loss.load_state_dict(dict(former))
    with pytest.raises(RuntimeError, match="trained with another noise distribution"):
        other.load_state_dict(former)


def test_a_checkpoint_of_a_linear_layer_is_loaded_strictly():
    linear = torch.nn.Linear(D, V)
    loss = NCELoss(D, V, torch.ones(V))
    loss.load_state_dict(linear.state_dict())
    hidden = torch.randn(N, D)
    torch.testing.assert_close(loss.log_prob(hidden), torch.log_softmax(linear(hidden), -1))


def test_a_weight_that_is_tied_later_keeps_its_values():
    embedding, loss = torch.nn.Embedding(V, D), NCELoss(D, V, torch.ones(V))
    loss.weight = embedding.weight
    before = embedding.weight.detach().clone()
    with torch.no_grad():
        loss.bias.fill_(7.0)
    loss.reset_parameters()
    assert loss.weight is embedding.weight
    assert torch.equal(embedding.weight, before)
    torch.testing.assert_close(loss.bias.exp(), torch.full((V,), 1 / V))


@pytest.mark.parametrize("kind", LOSSES)
def test_a_module_of_the_meta_device_is_filled_by_reset_parameters(kind):
    options = {"normalizer": "scalar"} if kind.startswith("nce") else {}
    with torch.device("meta"):
        loss = LOSSES[kind](D, V, list(range(1, V + 1)), K, **options)
    for module in (loss, LOSSES[kind](D, V, list(range(1, V + 1)), K, device="meta", **options)):
        assert module.noise.alias.is_meta
        module.to_empty(device="cpu")
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.data.fill_(77)  # as memory that is not initialised
        torch.manual_seed(0)
        module.reset_parameters()
        torch.manual_seed(0)
        direct = LOSSES[kind](D, V, list(range(1, V + 1)), K, **options)
        for found, expected in zip(module.parameters(), direct.parameters(), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
        for found, expected in zip(module.buffers(), direct.buffers(), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_bigram_noise_of_the_meta_device_is_filled():
    direct = bigram_noise(V)
    offsets = np.append(np.arange(V + 1) * 4, 4 * V)
    followers = np.sort(np.random.default_rng(6).integers(V, size=(V, 4)), axis=1).ravel().astype(np.int32)
    known = core.BigramNoise(core.Noise.from_counts(np.arange(1, V + 1)), 2.0, followers, offsets)
    noise = BigramNoise(known, dtype=torch.float64, device="meta").to_empty(device="cpu")
    noise.reset_parameters()
    for name, table in direct.named_buffers():
        torch.testing.assert_close(getattr(noise, name), table, rtol=0, atol=0)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("sparse", [True, False])
def test_a_batch_without_targets_has_no_loss_and_a_gradient_of_zeros(kind, training, sparse):
    """An error or NaN on one worker would block or destroy the others."""
    for hidden, target in (
        (torch.zeros(0, D), torch.zeros(0, dtype=torch.int64)),
        (torch.full((2, D), torch.nan), torch.tensor([-100, -100])),
    ):
        loss = LOSSES[kind](D, V, torch.ones(V), sparse=sparse and training).train(training)
        value = loss(hidden.requires_grad_(), target)
        assert value.item() == 0.0
        value.backward()
        for gradient in (hidden.grad, loss.weight.grad, loss.bias.grad):
            assert gradient is not None
            assert not gradient.to_dense().any()


@pytest.mark.parametrize("kind", LOSSES)
def test_nll_is_exact_in_training_mode(kind):
    """A loss that is not part of the model is not switched by model.eval()."""
    loss = double(kind, reduction="none")
    hidden, target = batch(2, 3)
    target[0, 1] = -100
    assert loss.training
    expected = -loss.log_prob(hidden).gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    expected[0, 1] = 0.0
    torch.testing.assert_close(loss.nll(hidden, target), expected)
    torch.testing.assert_close(loss.eval()(hidden, target), expected)
    loss.reduction = "mean"
    torch.testing.assert_close(loss.nll(hidden, target), expected.sum() / 5)


def test_a_generator_in_a_checkpointed_region_is_an_error():
    """The region is computed twice, with other samples the second time."""
    from torch.utils.checkpoint import checkpoint

    loss, (hidden, target) = double("nce"), batch(N)
    value = checkpoint(loss, hidden, target, use_reentrant=False, generator=seeded())
    with pytest.raises(RuntimeError, match="omit `generator`"):
        value.backward()
    gradients = []
    for region in (partial(checkpoint, loss, use_reentrant=False), loss):
        loss.zero_grad()
        torch.manual_seed(1)
        region(hidden, target).backward()
        gradients.append(loss.weight.grad.clone())
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("kind", PLAIN)
def test_signatures_name_all_arguments(kind):
    parameters = inspect.signature(LOSSES[kind]).parameters
    assert {"shared_noise", "tied_weight", "sparse", "reduction", "ignore_index"} <= set(parameters)
    assert not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())


def test_clip_grad_norm_of_sparse_gradients():
    norms, clipped = [], []
    for sparse in (False, True):
        loss = double("nce", shared_noise=True, sparse=sparse)
        loss(*batch(2, 3), generator=seeded()).backward()
        norms.append(clip_grad_norm_(loss.parameters(), 0.1))
        clipped.append([p.grad.to_dense() for p in loss.parameters()])
    torch.testing.assert_close(*norms)
    torch.testing.assert_close(*clipped)
    torch.testing.assert_close(torch.cat([g.flatten() for g in clipped[1]]).norm().item(), 0.1)
    assert clip_grad_norm_([torch.nn.Parameter(torch.zeros(1))], 1.0) == 0.0
    with pytest.raises(ValueError, match="max_norm is 0"):
        clip_grad_norm_([], 0)


def test_noise_is_never_in_half_precision():
    exact = NCELoss(D, V, torch.arange(1, V + 1)).noise
    for loss in (
        NCELoss(D, V, torch.arange(1, V + 1), dtype=torch.bfloat16),
        NCELoss(D, V, torch.arange(1, V + 1)).bfloat16(),
        NCELoss(D, V, torch.arange(1, V + 1)).to(torch.float16),
        NCELoss(D, V, torch.arange(1, V + 1, dtype=torch.bfloat16)),  # counts in half precision
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
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # raised by PyTorch
@pytest.mark.parametrize("options", [{}, {"shared_noise": True}, {"sparse": True}], ids=str)
def test_torch_compile(options):
    loss = NCELoss(D, V, torch.arange(1, V + 1), 2000, **options)
    hidden, target = torch.randn(50, D, requires_grad=True), torch.randint(V, (50,))
    compiled = torch.compile(loss, backend="aot_eager")
    value = compiled(hidden, target)
    value.backward()
    assert loss.weight.grad is not None
    # different noise samples, but many of them
    torch.testing.assert_close(value, loss(hidden, target), rtol=0.05, atol=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # raised by PyTorch
@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("shared", [False, True])
def test_torch_compile_with_changing_batch_sizes(kind, shared):
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    loss, counter = double(kind, shared_noise=shared), CompileCounterWithBackend("aot_eager")
    compiled, frames = torch.compile(loss, backend=counter, fullgraph=True, dynamic=True), []
    for size in (50, 33, 17, 8):
        hidden, target = batch(size)
        values, gradients = [], []
        for function in (compiled, loss):
            loss.zero_grad()
            torch.manual_seed(1)
            value = function(hidden, target)
            value.backward()
            values.append(value.detach())
            gradients.append(loss.weight.grad.clone())
        torch.testing.assert_close(*values)
        torch.testing.assert_close(*gradients)
        frames.append(counter.frame_count)
    assert frames[1:] == [frames[1]] * 3  # no compilation after the second size


# -- limits and statistics ---------------------------------------------------------------------------------------------


def test_with_many_noise_samples_the_gradient_is_that_of_maximum_likelihood():
    """Eq. 12, for a normalized model."""
    torch.manual_seed(0)
    hidden, target = batch(N)
    gradients = []
    for training, k in ((True, 200_000), (False, 1)):
        loss = double("nce", shared_noise=True).train(training)
        with torch.no_grad():
            loss.bias.zero_()
            loss.weight.mul_(0.0)
            loss.bias.sub_(np.log(V))  # uniform: Z = 1
        loss.num_noise = k
        loss(hidden, target).backward()
        gradients.append(loss.bias.grad)
    torch.testing.assert_close(gradients[0], gradients[1], atol=3e-3, rtol=0)


@pytest.mark.parametrize("options", [{}, {"shared_noise": True}, {"normalizer": "scalar"}, {"unique": True}], ids=str)
def test_nce_recovers_a_known_distribution(options):
    torch.manual_seed(0)
    expected = torch.tensor(random_distribution(np.random.default_rng(0), 6), dtype=torch.float32)
    unique = options.get("unique", False)
    if unique:  # four distinct classes of six, with their inclusion probabilities
        loss = NCELoss(1, 6, UniqueNoise(torch.arange(1.0, 7.0), 4), 4, shared_noise=True)
    else:
        loss = NCELoss(1, 6, torch.ones(6), 300 if options.get("shared_noise") else 50, **options)
    optimizer = torch.optim.Adagrad(loss.parameters(), lr=0.3)
    for _ in range(400):
        target = torch.multinomial(expected, 500, replacement=True)
        optimizer.zero_grad()
        loss(torch.zeros(500, 1), target).backward()
        optimizer.step()
    found = loss.log_prob(torch.zeros(1)).exp()
    torch.testing.assert_close(found, expected, atol=0.03 if unique else 0.02, rtol=0)
    c = 0.0 if loss.log_normalizer is None else loss.log_normalizer[0]
    assert abs((torch.logsumexp(loss.bias, 0) + c).item()) < 0.1  # it is self-normalized


@pytest.mark.parametrize(("kind", "k"), [("sampled-softmax", 300), ("importance", 300), ("negative-sampling", 10)])
def test_further_losses_recover_a_known_distribution(kind, k):
    """With few samples sampled softmax and importance sampling are biased: k is large here."""
    torch.manual_seed(0)
    size = 6
    expected = torch.tensor(random_distribution(np.random.default_rng(0), size), dtype=torch.float32)
    loss = LOSSES[kind](1, size, torch.arange(1.0, size + 1), k, shared_noise=k == 300)
    optimizer = torch.optim.Adagrad(loss.parameters(), lr=0.3)
    for _ in range(400):
        target = torch.multinomial(expected, 500, replacement=True)
        optimizer.zero_grad()
        loss(torch.zeros(500, 1), target).backward()
        optimizer.step()
    torch.testing.assert_close(loss.log_prob(torch.zeros(1)).exp(), expected, atol=0.02, rtol=0)
    if kind == "negative-sampling":
        optimum = ref.negative_sampling_optimum(
            expected.numpy(), loss.noise.log_prob(torch.arange(size)).exp().numpy(), k
        )
        np.testing.assert_allclose(loss.bias.detach(), optimum, atol=0.25)


@pytest.mark.parametrize(
    "noise", ["shared", *(pytest.param(noise, marks=pytest.mark.slow) for noise in ("per-example", "bigram"))]
)
@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_ranking_recovers_known_distributions_up_to_a_constant_per_context(noise, alpha):
    """Without a penalty log Z stays far from 0, where it started. With one it tends to 0 for every context."""
    torch.manual_seed(0)
    size, rng = 6, np.random.default_rng(0)
    expected = torch.tensor(np.stack([random_distribution(rng, size) for _ in range(size)]))  # P(w | v), (V, V)
    source = bigram_noise(size) if noise == "bigram" else torch.ones(size, dtype=torch.float64)
    samples, options = (300, {"shared_noise": True}) if noise == "shared" else (50, {})
    loss = RankingNCELoss(size, size, source, samples, bias=False, log_z_penalty=alpha, dtype=torch.float64, **options)
    with torch.no_grad():
        loss.weight.zero_().add_(torch.linspace(-3.0, 3.0, size, dtype=torch.float64))  # log Z − log V, per context
    optimizer = torch.optim.Adagrad(loss.parameters(), lr=0.5)
    one_hot = torch.eye(size, dtype=torch.float64)  # the previous word v is the context
    for _ in range(400):
        before = torch.randint(size, (600,))
        target = torch.multinomial(expected[before], 1).squeeze(1)
        optimizer.zero_grad()
        loss(one_hot[before], target, before=before).backward()
        optimizer.step()
    torch.testing.assert_close(loss.log_prob(one_hot).exp(), expected, atol=0.03, rtol=0)
    log_z = torch.logsumexp(one_hot @ loss.weight.T, 1).detach()  # (V,), one for each context
    if alpha:
        assert float(log_z.abs().max()) < 0.1
    else:
        assert float(log_z.max() - log_z.min()) > 2.0


def test_with_many_noise_samples_the_gradient_of_ranking_is_that_of_maximum_likelihood():
    """For any scores: unlike NCE, ranking does not need a normalized model."""
    torch.manual_seed(0)
    hidden, target = batch(N)
    gradients = []
    for training, k in ((True, 200_000), (False, 1)):
        loss = double("ranking", shared_noise=True).train(training)
        loss.num_noise = k
        loss(hidden, target).backward()
        gradients.append(loss.bias.grad)
    torch.testing.assert_close(gradients[0], gradients[1], atol=3e-3, rtol=0)


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("training", [True, False])
def test_invalid_batches_are_rejected(kind, training):
    loss = LOSSES[kind](D, V, torch.ones(V)).train(training)
    hidden = torch.zeros(2, D)
    with pytest.raises(IndexError, match=f"target {V} is not a class: they are 0 to {V - 1}"):
        loss(hidden, torch.tensor([0, V]))
    with pytest.raises(IndexError, match="target -1 is not"):
        loss(hidden, torch.tensor([0, -1]))
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


def test_invalid_arguments_are_rejected():
    from ncelm.errors import NcelmError

    with pytest.raises(NcelmError, match="noise weight of word 1 is 0"):
        NCELoss(D, 3, [1.0, 0.0, 1.0])
    with pytest.raises(ValueError, match="noise is over 3 classes, and num_classes is 4"):
        NCELoss(D, 4, [1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="num_noise is 0"):
        NCELoss(D, 3, [1.0, 1.0, 1.0], 0)
    with pytest.raises(ValueError, match="choose mean, sum or none"):
        NCELoss(D, 3, [1.0, 1.0, 1.0], reduction="median")
    with pytest.raises(ValueError, match="tied_weight is"):
        NCELoss(D, 3, [1.0, 1.0, 1.0], tied_weight=torch.nn.Parameter(torch.zeros(2, D)))
    for name, tensor in (("tied_weight", torch.zeros(3, D)), ("bias", torch.zeros(3))):
        with pytest.raises(TypeError, match=f"{name} is a tensor and not an nn.Parameter"):
            NCELoss(D, 3, [1.0, 1.0, 1.0], **{name: tensor})
    for kind in (NCELoss, RankingNCELoss):
        for value in (-0.1, float("nan"), float("inf")):
            with pytest.raises(ValueError, match=r"log_z_penalty is .*: give a number that is not negative"):
                kind(D, 3, [1.0, 1.0, 1.0], log_z_penalty=value)
    with pytest.raises(ValueError, match="needs num_contexts"):
        NCELoss(D, 3, [1.0, 1.0, 1.0], normalizer="context")
    with pytest.raises(ValueError, match="give context_ids"):
        NCELoss(D, 3, [1.0, 1.0, 1.0], normalizer="context", num_contexts=2)(
            torch.zeros(1, D), torch.zeros(1, dtype=torch.int64)
        )


def test_a_missing_installation_is_reported_with_the_extra():
    """None in sys.modules makes an import fail."""
    script = "import sys; sys.modules['torch'] = None; import ncelm.torch"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'ncelm[torch]'" in done.stderr.splitlines()[-1]
