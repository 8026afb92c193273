"""Every equation of the paper, one function each, in float64.

Mnih & Teh (2012), "A fast and simple algorithm for training neural probabilistic language models", ICML.
Nothing here is fast. `ncelm.kernels`, `ncelm.losses.functions` and `ncelm.torch` are tested against it.

One context h at a time: `scores` is s(w, h) for every word of the vocabulary, (V,); q̂, q_w, r_w are rows.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import numpy as np

Array = np.ndarray


def log_sum_exp(x: Array) -> float:
    """log Σ exp(x), without overflow."""
    largest = float(np.max(x))
    return largest + float(np.log(np.sum(np.exp(np.asarray(x, np.float64) - largest))))


def eq1_probabilities(scores: Array) -> Array:
    """P(w|h) = exp(s(w, h)) / Σ_w' exp(s(w', h)), (V,)."""
    return np.exp(np.asarray(scores, np.float64) - log_sum_exp(scores))


def eq2_prediction(matrices: Array, context_rows: Array) -> Array:
    """q̂ = Σ_i C_i r_wi, (d,). `matrices` is (c, d, d), or (c, d) for diagonal C_i; `context_rows` is (c, d)."""
    matrices, context_rows = np.asarray(matrices, np.float64), np.asarray(context_rows, np.float64)
    predicted = np.zeros(context_rows.shape[1])
    for matrix, row in zip(matrices, context_rows, strict=True):
        predicted += matrix @ row if matrix.ndim == 2 else matrix * row
    return predicted


def eq3_scores(predicted: Array, target_vectors: Array, biases: Array) -> Array:
    """s(w, h) = q̂ᵀ q_w + b_w for every w, (V,)."""
    return np.asarray(target_vectors, np.float64) @ predicted + np.asarray(biases, np.float64)


def eq4_ml_gradient(scores: Array, target: int) -> Array:
    """d log P(w|h) / d s(·, h) = 1[· = w] − P(·|h), (V,)."""
    gradient = -eq1_probabilities(scores)
    gradient[target] += 1.0
    return gradient


def eq5_importance_gradient(scores: Array, target: int, samples: Array, proposal: Array) -> Array:
    """The importance-sampling estimate of Eq. 4 from samples x_j of Q = `proposal`, (V,).

    Weights v(x) = exp(s(x, h)) / Q(x), divided by their sum.
    """
    log_v = np.asarray(scores, np.float64)[samples] - np.log(proposal[samples])  # (k,)
    weights = np.exp(log_v - log_sum_exp(log_v))  # v / V
    gradient = np.zeros(len(scores))
    gradient[target] += 1.0
    np.subtract.at(gradient, samples, weights)
    return gradient


def eq5_objective(scores: Array, target: int, samples: Array, proposal: Array) -> float:
    """The objective whose gradient is Eq. 5: s(w, h) − log(mean of v), an estimate of log P(w|h)."""
    scores = np.asarray(scores, np.float64)
    return float(scores[target] - log_sum_exp(scores[samples] - np.log(proposal[samples])) + np.log(len(samples)))


def effective_sample_size(scores: Array, samples: Array, proposal: Array) -> float:
    """(Σ v)² / Σ v², from 1 to the number of samples (Bengio & Senécal 2003)."""
    v = np.exp(np.asarray(scores, np.float64)[samples]) / proposal[samples]
    return float(np.square(v.sum()) / np.square(v).sum())


def eq6_posterior(data: Array, noise: Array, k: float) -> Array:
    """P(D=1|w) = P_d(w) / (P_d(w) + k·Pn(w))."""
    return data / (data + k * noise)


def eq7_model_posterior(scores: Array, noise: Array, k: float, log_normalizer: float = 0.0) -> Array:
    """P(D=1|w, θ) = P_θ(w) / (P_θ(w) + k·Pn(w)) with P_θ from Eq. 8."""
    return eq6_posterior(eq8_model(scores, log_normalizer), noise, k)


def eq8_model(scores: Array, log_normalizer: float = 0.0) -> Array:
    """P_θ(w) = P⁰_θ(w) exp(c_h): exp(s) times a normalizing factor that is a parameter or fixed to 1 (c_h = 0)."""
    return np.exp(np.asarray(scores, np.float64) + log_normalizer)


def eq9_objective(scores: Array, data: Array, noise: Array, k: float, log_normalizer: float = 0.0) -> float:
    """J_h(θ) = E_data[log P(D=1|w, θ)] + k E_noise[log P(D=0|w, θ)]."""
    posterior = eq7_model_posterior(scores, noise, k, log_normalizer)
    return float(data @ np.log(posterior) + k * (noise @ np.log1p(-posterior)))


def eq10_gradient(scores: Array, data: Array, noise: Array, k: float, log_normalizer: float = 0.0) -> Array:
    """dJ_h/ds(·, h) as the two expectations of Eq. 10, (V,)."""
    model = eq8_model(scores, log_normalizer)
    return data * (k * noise / (model + k * noise)) - k * noise * (model / (model + k * noise))


def eq11_gradient(scores: Array, data: Array, noise: Array, k: float, log_normalizer: float = 0.0) -> Array:
    """Eq. 10 rearranged to contain the difference of data and model, (V,)."""
    model = eq8_model(scores, log_normalizer)
    return k * noise / (model + k * noise) * (data - model)


def eq12_limit(scores: Array, data: Array, log_normalizer: float = 0.0) -> Array:
    """The limit of Eq. 11 for large k: P_d − P_θ, the maximum-likelihood gradient, (V,)."""
    return data - eq8_model(scores, log_normalizer)


def eq13_objective(scores: Array, target: int, samples: Array, noise: Array, c: float = 0.0) -> float:
    """J_hw(θ): the sample version of Eq. 9 for one observed word and its k noise words."""
    posterior = eq7_model_posterior(scores, noise, len(samples), c)
    return float(np.log(posterior[target]) + np.sum(np.log1p(-posterior[samples])))


def eq13_gradient(scores: Array, target: int, samples: Array, noise: Array, c: float = 0.0) -> Array:
    """dJ_hw/ds(·, h), (V,): the weights of Eq. 13, all of them between −1 and 1 for each sample.

    A noise word that equals the target is kept.
    """
    posterior = eq7_model_posterior(scores, noise, len(samples), c)
    gradient = np.zeros(len(scores))
    gradient[target] += 1.0 - posterior[target]
    np.subtract.at(gradient, samples, posterior[samples])
    return gradient


# The family of Pihlaja, Gutmann & Hyvärinen (2010), by the ratio q = Pθ(w) / (k·Pn(w)): g1(q), g2(q) and q g1'(q).
FAMILY: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array], Callable[[Array], Array]]] = {
    "nce": (lambda q: np.log(q / (1 + q)), lambda q: np.log(1 + q), lambda q: 1 / (1 + q)),
    "importance": (np.log, lambda q: q, lambda q: q / q),
    "inverse": (lambda q: -1 / q, np.log, lambda q: 1 / q),
    "root": (
        lambda q: np.log((np.sqrt(1 + q) - 1) / (np.sqrt(1 + q) + 1)),
        lambda q: 2 * np.sqrt(1 + q),
        lambda q: 1 / np.sqrt(1 + q),
    ),
    "square": (lambda q: np.log(q / (1 + q)) + 1 / (1 + q), lambda q: -1 / (1 + q), lambda q: 1 / (1 + q) ** 2),
}


def family_objective(member: str, scores: Array, target: int, samples: Array, noise: Array, c: float = 0.0) -> float:
    """J = g1(q of the target) − Σ g2(q of a noise word), where g2'(q) = q g1'(q); Eq. 13's objective for "nce"."""
    g1, g2, _ = FAMILY[member]
    q = eq8_model(scores, c) / (len(samples) * noise)  # (V,)
    return float(g1(q[target]) - np.sum(g2(q[samples])))


def family_gradient(member: str, scores: Array, target: int, samples: Array, noise: Array, c: float = 0.0) -> Array:
    """dJ/ds(·, h), (V,): q g1'(q) for the target, −q² g1'(q) for a noise word."""
    _, _, up = FAMILY[member]
    q = eq8_model(scores, c) / (len(samples) * noise)  # (V,)
    gradient = np.zeros(len(scores))
    gradient[target] += up(q[target])
    np.subtract.at(gradient, samples, q[samples] * up(q[samples]))
    return gradient


def ranking_objective(scores: Array, target: int, samples: Array, noise: Array) -> float:
    """log of the softmax of s − log Pn over the target and its noise words, at the target (Ma & Collins 2018)."""
    logits = np.asarray(scores, np.float64) - np.log(noise)  # (V,)
    words = [target, *samples]
    return float(logits[target] - log_sum_exp(logits[words]))


def ranking_gradient(scores: Array, target: int, samples: Array, noise: Array) -> Array:
    """dJ/ds(·, h) of `ranking_objective`, (V,): 1 for the target minus the softmax of every word of the sample."""
    words = np.array([target, *samples])
    gradient = np.zeros(len(scores))
    gradient[target] += 1.0
    np.subtract.at(gradient, words, eq1_probabilities(np.asarray(scores, np.float64)[words] - np.log(noise[words])))
    return gradient


def log_z_estimate(scores: Array, samples: Array, noise: Array) -> float:
    """log Ẑ(h) = log(mean over the noise words of exp(s) / Pn)."""
    return log_sum_exp(np.asarray(scores, np.float64)[samples] - np.log(noise[samples])) - float(np.log(len(samples)))


def log_z_penalty_gradient(scores: Array, samples: Array, noise: Array) -> Array:
    """d (log Ẑ)² / ds(·, h), (V,): 2 log Ẑ times each noise word's share of Ẑ (Goldberger & Melamud 2018)."""
    shares = eq1_probabilities(np.asarray(scores, np.float64)[samples] - np.log(noise[samples]))  # (k,)
    gradient = np.zeros(len(scores))
    np.add.at(gradient, samples, 2.0 * log_z_estimate(scores, samples, noise) * shares)
    return gradient


def sampled_softmax_objective(
    scores: Array, target: int, samples: Array, noise: Array, hits: bool = False, smoothing: float = 0.0
) -> float:
    """s(w, h) − log Ẑ(h) with Ẑ(h) = exp(s(w, h)) + Σ_j exp(s(w_j, h)) / (k·Pn(w_j)) (Bengio & Senécal 2008).

    The sum is over the samples that are not the target, or over all if `hits`. With `smoothing` ε, the first term is
    (1 − ε) s(w, h) + ε times the mean score of the samples.
    """
    s = np.asarray(scores, np.float64)
    kept = samples if hits else samples[samples != target]
    terms = [s[target], *(s[kept] - np.log(len(samples) * noise[kept]))]
    first = (1.0 - smoothing) * s[target] + smoothing * np.mean(s[samples])
    return float(first - log_sum_exp(np.array(terms)))


def sampled_softmax_gradient(
    scores: Array, target: int, samples: Array, noise: Array, hits: bool = False, smoothing: float = 0.0
) -> Array:
    """dJ/ds(·, h) of `sampled_softmax_objective`, (V,): the target distribution minus the share of each term of Ẑ."""
    s = np.asarray(scores, np.float64)
    kept = samples if hits else samples[samples != target]
    words = np.array([target, *kept])
    shares = eq1_probabilities(np.array([s[target], *(s[kept] - np.log(len(samples) * noise[kept]))]))
    gradient = np.zeros(len(s))
    gradient[target] += 1.0 - smoothing
    np.add.at(gradient, samples, smoothing / len(samples))
    np.subtract.at(gradient, words, shares)
    return gradient


def negative_sampling_objective(scores: Array, target: int, samples: Array, hits: bool = True) -> float:
    """log σ(s(w, h)) + Σ_j log σ(−s(w_j, h)) (Mikolov et al. 2013); samples equal to the target count if `hits`."""
    s = np.asarray(scores, np.float64)
    kept = samples if hits else samples[samples != target]
    return float(-np.logaddexp(0.0, -s[target]) - np.logaddexp(0.0, s[kept]).sum())


def negative_sampling_gradient(scores: Array, target: int, samples: Array, hits: bool = True) -> Array:
    """dJ/ds(·, h) of `negative_sampling_objective`, (V,): 1 − σ(s) for the target, −σ(s) for a sample."""
    s = np.asarray(scores, np.float64)
    kept = samples if hits else samples[samples != target]
    sigma = 1.0 / (1.0 + np.exp(-s))
    gradient = np.zeros(len(s))
    gradient[target] += 1.0 - sigma[target]
    np.subtract.at(gradient, kept, sigma[kept])
    return gradient


def negative_sampling_optimum(data: Array, noise: Array, k: int) -> Array:
    """The scores that maximize negative sampling: log P_d(w) − log(k·Pn(w)), (V,) (Levy & Goldberg 2014)."""
    return np.log(data) - np.log(k * noise)


def in_batch_objective(
    scores: Array, query: int, ids: Array, frequencies: Array, hits: bool = False, smoothing: float = 0.0
) -> float:
    """log softmax of s(i, ·) − log Q(·) over the items of a batch, at the own item of query i (Yi et al. 2019).

    `scores`, `ids` and `frequencies` are those of the items of the batch, (N + M,); item i is the target. Other items
    with the same id are left out if not `hits`. With `smoothing` ε, the target distribution is 1 − ε for the target
    plus ε divided equally among all items.
    """
    logits = np.asarray(scores, np.float64) - np.log(frequencies)
    kept = np.ones(len(ids), bool) if hits else (ids != ids[query])
    kept[query] = True
    return float((1.0 - smoothing) * logits[query] + smoothing * logits.mean() - log_sum_exp(logits[kept]))


def log_uniform_noise(vocabulary: int) -> Array:
    """Pn(w) = log((w + 2) / (w + 1)) / log(V + 1), (V,)."""
    w = np.arange(vocabulary, dtype=np.float64)
    return np.log((w + 2.0) / (w + 1.0)) / np.log(vocabulary + 1.0)


def bigram_noise(counts: Array, unigram: Array, smoothing: float) -> Array:
    """Pn(w|v) = (n(v, w) + α Pu(w)) / (n(v) + α) for one word v before, from its counts n(v, ·), (V,)."""
    return (counts + smoothing * unigram) / (np.sum(counts) + smoothing)


def eq14_objective(context_probabilities: Array, objectives: Array) -> float:
    """J(θ) = Σ_h P(h) J_h(θ)."""
    return float(np.dot(context_probabilities, objectives))


def eq15_speedup(context: int, dim: int, vocabulary: int, k: int, diagonal: bool = False) -> float:
    """The speed-up of an NCE update over a maximum-likelihood update."""
    predict = context if diagonal else context * dim
    return (predict + vocabulary) / (predict + k)


def parameter_gradients(
    parameters: dict[str, Array], contexts: Array, score_gradients: Array, masks: Array | float = 1.0
) -> dict[str, Array]:
    """The chain rule from dJ/ds, (B, V), through Eq. 2 and 3 to every parameter, summed over the minibatch.

    `parameters` has context_vectors (V + 1, d), target_vectors (V, d), biases (V,) and matrices (c, d, d) or (c, d);
    `contexts` is (B, c). With dropout q̂ is multiplied by `masks`, (B, d).
    """
    p = {name: np.asarray(value, np.float64) for name, value in parameters.items()}
    gradients = {name: np.zeros_like(value) for name, value in p.items()}
    masks = np.broadcast_to(masks, (len(contexts), p["target_vectors"].shape[1]))
    for context, dJ_ds, mask in zip(contexts, score_gradients, masks, strict=True):
        predicted = mask * eq2_prediction(p["matrices"], p["context_vectors"][context])
        dJ_dq_hat = mask * (dJ_ds @ p["target_vectors"])  # (d,)
        gradients["target_vectors"] += np.outer(dJ_ds, predicted)
        gradients["biases"] += dJ_ds
        for i, word in enumerate(context):
            matrix, row = p["matrices"][i], p["context_vectors"][word]
            if matrix.ndim == 2:
                gradients["matrices"][i] += np.outer(dJ_dq_hat, row)
                gradients["context_vectors"][word] += matrix.T @ dJ_dq_hat
            else:
                gradients["matrices"][i] += dJ_dq_hat * row
                gradients["context_vectors"][word] += matrix * dJ_dq_hat
    return gradients


def kneser_ney(
    sentences: Sequence[Sequence[int]],
    order: int,
    vocabulary: int,
    discounts: Sequence[Sequence[float]],
    min_counts: Sequence[int],
) -> Callable[[int, Sequence[int]], float]:
    """P(w|h) of interpolated modified Kneser–Ney smoothing, by dictionaries: Chen & Goodman (1999), section 3.

    Each sentence begins with a mark that is not predicted. `discounts` are, for each order, those of n-grams seen once,
    twice, three times or more; n-grams seen less often than the order's `min_counts` are as if never seen, and what
    they had goes to the shorter ones.
    """
    counts = [Counter[tuple[int, ...]]() for _ in range(order + 1)]  # c(w_1 … w_n), by n
    for sentence in sentences:
        for end in range(1, len(sentence)):
            for n in range(1, min(order, end + 1) + 1):
                counts[n][tuple(sentence[end - n + 1 : end + 1])] += 1
    # below the highest order an n-gram counts as often as there are different words before it, N1+(· w_1 … w_n)
    adjusted = [Counter(count) for count in counts]
    for n in range(1, order):
        before = Counter(ngram[1:] for ngram in counts[n + 1])
        adjusted[n] = Counter({ngram: before[ngram] or count for ngram, count in counts[n].items()})
    following = [defaultdict[tuple[int, ...], list[tuple[int, ...]]](list) for _ in range(order + 1)]
    for n in range(1, order + 1):
        for ngram in adjusted[n]:
            following[n][ngram[:-1]].append(ngram)

    def discount(ngram: tuple[int, ...]) -> float:
        n, count = len(ngram), adjusted[len(ngram)][ngram]
        if counts[n][ngram] < min_counts[n - 1]:
            return float(count)
        return ([0.0, *discounts[n - 1]])[min(count, 3)]

    def probability(word: int, history: Sequence[int]) -> float:
        """P(word | history), the history cut to what the order looks at."""
        h = tuple(history[max(len(history) - order + 1, 0) :])
        n = len(h) + 1
        lower = probability(word, h[1:]) if h else 1.0 / vocabulary
        total = sum(adjusted[n][ngram] for ngram in following[n][h])
        if total == 0:
            return lower
        gamma = sum(discount(ngram) for ngram in following[n][h]) / total
        return (adjusted[n][(*h, word)] - discount((*h, word))) / total + gamma * lower

    return probability
