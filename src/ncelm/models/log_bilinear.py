"""The log-bilinear model: configuration, parameters, scores and exact log-probabilities (Eq. 1–3 of the paper).

Symbols: V words, c context words, d dimensions, n contexts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from ncelm.arguments import check_bool, check_choice, check_int, set_checked
from ncelm.errors import NcelmError
from ncelm.kernels import records
from ncelm.kernels.threads import Team
from ncelm.models.base import Mode, Sides
from ncelm.models.normalizer import Normalizer

Matrices = Literal["full", "diagonal"]
Architecture = Literal["log-bilinear", "feed-forward", "lstm", "maximum-entropy"]
WORK_PER_CALL = 20_000_000_000  # multiplications in one call of a kernel that scores: less than half a second
WORK_ALONE = 100_000_000  # multiplications, about 1 ms: on a busy machine threads would wait longer for each other
KEPT_PER_CALL = 1 << 22  # numbers of q̂ in one call; bounds the memory if the vocabulary is small


@dataclass(frozen=True)
class ModelConfig:
    """The architecture of a model and its sizes."""

    architecture: Architecture = "log-bilinear"  # all others need PyTorch
    context: int = 4  # words before the predicted word
    context_after: int = 0  # words after it
    dim: int = 100  # d: dimension of the word vectors
    matrices: Matrices = "full"  # context matrices C_i: full (section 4 of the paper) or diagonal (section 5)
    tied_embeddings: bool = False  # one table for context vectors r_w and target vectors q_w
    hidden: int = 0  # units of the hidden layer of a feed-forward network or an LSTM; 0: dim
    features: int = 4_000_000  # weights of a maximum-entropy model, to which n-grams are hashed

    def __post_init__(self) -> None:
        limits = {
            "context": (0, 100_000),
            "context_after": (0, 100_000),
            "dim": (1, 100_000),
            "hidden": (0, 100_000),
            "features": (1, 10**10),
        }
        for name, (low, high) in limits.items():
            set_checked(self, name, check_int(name, getattr(self, name), low, high))
        check_choice("architecture", self.architecture, get_args(Architecture))
        check_choice("matrices", self.matrices, get_args(Matrices))
        check_bool("tied_embeddings", self.tied_embeddings)
        if self.architecture == "lstm" and self.context_after:
            raise NcelmError("`architecture` lstm reads forwards: leave `context_after` out")
        if self.positions == 0 and self.architecture != "lstm":
            raise NcelmError("`context` and `context_after` are both 0: the model needs at least one context word")
        if self.tied_embeddings and self.architecture in ("feed-forward", "lstm") and self.hidden not in (0, self.dim):
            raise NcelmError(f"`tied_embeddings` needs as many `hidden` units as `dim`, {self.dim}")

    @classmethod
    def from_dict(cls, content: Any) -> "ModelConfig":
        """Return the configuration in a config.json. The content is not trusted; missing fields have defaults."""
        if not isinstance(content, dict):
            raise NcelmError("the model configuration is damaged: it is not an object")
        former = {"shared_tables": "tied_embeddings"}  # names in runs of version 1
        values = {str(former.get(name, name)): value for name, value in content.items()}
        if unknown := sorted(set(values) - set(cls.__dataclass_fields__)):
            raise NcelmError(f"the model configuration is damaged: it has an unknown field {unknown[0][:40]!r}")
        return cls(**values)

    @property
    def positions(self) -> int:
        """How many context words there are on both sides together: c."""
        return self.context + self.context_after

    @property
    def sides(self) -> Sides:
        """On which sides they are."""
        if not self.context_after:
            return "before"
        return "both" if self.context else "after"


@dataclass(frozen=True, eq=False)
class LogBilinear:
    """A log-bilinear model. All parameters are float32 and C-contiguous."""

    config: ModelConfig
    context_vectors: np.ndarray  # r_w, (V + 1, d): the last row is the out-of-sentence word
    target_vectors: np.ndarray  # q_w, (V, d): a view of context_vectors if embeddings are tied
    biases: np.ndarray  # b_w, (V,)
    matrices: np.ndarray  # C_i, (c, d, d), or their diagonals, (c, d)
    normalizer: Normalizer | None = None  # estimates log Z(h) of these parameters

    def __repr__(self) -> str:
        config = self.config
        sides = f"context {config.context}" + (f" + {config.context_after}" if config.context_after else "")
        return f"LogBilinear({sides}, dim {config.dim}, {config.matrices} matrices)"

    @classmethod
    def initialise(
        cls, config: ModelConfig, word_probabilities: np.ndarray, seed: int, init_std: float
    ) -> "LogBilinear":
        """Return a model with random parameters: C_i near identity / c, and log-probabilities of words as biases.

        `init_std` is the standard deviation of the word vectors.
        """
        c, d, size = config.positions, config.dim, word_probabilities.size
        random = np.random.Generator(np.random.Philox(seed))

        def normal(shape: tuple[int, ...], std: float) -> np.ndarray:
            return random.standard_normal(shape, np.float32) * np.float32(std)

        context_vectors = normal((size + 1, d), init_std)
        target_vectors = context_vectors[:size] if config.tied_embeddings else normal((size, d), init_std)
        if config.matrices == "full":
            matrices = np.eye(d, dtype=np.float32) / np.float32(c) + normal((c, d, d), 0.01)
        else:
            matrices = np.full((c, d), 1.0 / c, np.float32)
        return cls(config, context_vectors, target_vectors, np.log(word_probabilities).astype(np.float32), matrices)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the parameters by name, as in a model file; tied embeddings are one array."""
        arrays = {
            "context_vectors": self.context_vectors,
            "target_vectors": self.target_vectors,
            "biases": self.biases,
            "matrices": self.matrices,
        }
        if self.config.tied_embeddings:
            del arrays["target_vectors"]
        return arrays

    @staticmethod
    def shapes(config: ModelConfig, vocabulary_size: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each array of a model with this configuration."""
        c, d = config.positions, config.dim
        shapes: dict[str, tuple[int, ...]] = {
            "context_vectors": (vocabulary_size + 1, d),
            "target_vectors": (vocabulary_size, d),
            "biases": (vocabulary_size,),
            "matrices": (c, d, d) if config.matrices == "full" else (c, d),
        }
        if config.tied_embeddings:
            del shapes["target_vectors"]
        return shapes

    @classmethod
    def from_arrays(cls, config: ModelConfig, arrays: dict[str, np.ndarray]) -> "LogBilinear":
        """Return the model with these parameters, whose shapes must be those of `shapes`."""
        context_vectors = arrays["context_vectors"]
        return cls(
            config,
            context_vectors,
            context_vectors[:-1] if config.tied_embeddings else arrays["target_vectors"],
            arrays["biases"],
            arrays["matrices"],
        )

    def parameters(self) -> records.Parameters:
        """Return the parameters in the form that compiled code accepts."""
        return records.Parameters(self.context_vectors, self.target_vectors, self.biases, self.matrices)

    def predict(self, contexts: np.ndarray) -> np.ndarray:
        """Return q̂ = Σ_i C_i r_wi (Eq. 2): contexts (n, c) → (n, d)."""
        from ncelm.kernels import panels, score

        contexts = np.ascontiguousarray(contexts, np.int64)
        if contexts.ndim != 2 or contexts.shape[1] != self.config.positions:
            raise ValueError(f"contexts must be (n, {self.config.positions}), not {contexts.shape}")
        if contexts.size and not 0 <= contexts.min() <= contexts.max() <= self.biases.size:
            raise IndexError(f"context words must be ids from 0 to {self.biases.size}")
        out = np.empty((len(contexts), self.config.dim), np.float32)
        scratch = np.empty((2, self.config.dim, panels.LANES), np.float32)
        score.predict(self.matrices, self.context_vectors, contexts, scratch[0], scratch[1], out)
        return out

    @property
    def sides(self) -> Sides:
        """The side of the predicted word on which its context is."""
        return self.config.sides

    def score_positions(
        self, corpus: records.Corpus, first: int, last: int, team: Team, mode: Mode = "exact"
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return s(w, h) and log Z(h) of the words at positions first..last - 1, both (last - first,).

        log Z(h) is a sum over the vocabulary, an estimate of it in the mode "fast", and 0 in the mode "unnormalised".
        """
        from ncelm.kernels import panels, score

        n, c, exact, threads = last - first, self.config.positions, mode == "exact", team.threads
        units = self._normalizer_units() if mode == "fast" else None
        scores, log_z = np.empty(n, np.float32), None if mode == "unnormalised" else np.empty(n)
        corpus = corpus._replace(before=self.config.context)
        parameters = self._read_only_parameters()
        # Hashing a context takes less than a hundredth of the time of a sum over the vocabulary.
        contexts = _equal_contexts(corpus, c, first, last) if exact else _each_by_itself(n)
        # Calls of less than half a second, so that Ctrl-C is answered.
        summed = self.biases.size if exact else units.biases.size if units else 1
        work = summed * self.config.dim + parameters.matrices.size
        block = panels.LANES * score.PANEL_BLOCK
        most = min(WORK_PER_CALL // work, KEPT_PER_CALL // self.config.dim) if exact else WORK_PER_CALL // work
        size, count = block * max(most // block, 1), contexts.offsets.size - 1  # contexts in a call, and in all
        kept = -(-min(size, count) // panels.LANES) if exact else threads if units else 0
        scratch = score.score_scratch(parameters, threads, kept, summed)
        run = team.run_alone if log_z is not None and work * count < WORK_ALONE else team.run
        for start in range(0, count, size):
            part = contexts._replace(offsets=contexts.offsets[start : start + size + 1])
            run(score.score_positions, score.PHASES, corpus, parameters, first, part, scores, log_z, units, scratch)
        # Z is a sum that exp(s) is part of. Rounding or an estimate must not make a probability larger than 1.
        return scores, np.zeros(n) if log_z is None else np.maximum(log_z, scores)

    def log_normalizers(self, predicted: np.ndarray, team: Team) -> np.ndarray:
        """Return log Z(h) of contexts with these vectors q̂: (n, d) float32 → (n,) float64."""
        from ncelm.kernels import panels, score

        log_z, parameters, v = np.empty(len(predicted)), self._read_only_parameters(), self.biases.size
        block = panels.LANES * score.PANEL_BLOCK
        most = min(WORK_PER_CALL // self.target_vectors.size, KEPT_PER_CALL // self.config.dim)
        size = block * max(most // block, 1)
        scratch = score.score_scratch(parameters, team.threads, -(-min(size, len(predicted)) // panels.LANES), v)
        for start in range(0, len(predicted), size):
            part, out = records.read_only(predicted[start : start + size]), log_z[start : start + size]
            team.run(
                score.log_normalizers, score.PHASES, part, parameters, _each_by_itself(len(part)), out, scratch
            )  # fmt: skip
        return log_z

    def _read_only_parameters(self) -> records.Parameters:
        return records.Parameters(*map(records.read_only, self.parameters()))

    def _normalizer_units(self) -> records.NormalizerUnits:
        if self.normalizer is None:
            raise NcelmError(
                "the model has no normalizer for its parameters, which fast scores need: make one with "
                "`ncelm normalizer RUN`, or use the mode exact or unnormalised"
            )
        return self.normalizer.units

    def distribution(self, before: np.ndarray, after: np.ndarray, pad_id: int) -> np.ndarray:
        """Return log P(w|h) of every word, (V,), for a gap between the words `before` and `after`."""
        c, c_after = self.config.context, self.config.context_after
        left = np.concatenate([np.full(c, pad_id), before])[len(before) :]  # the last c words, padded
        right = np.concatenate([after, np.full(c_after, pad_id)])[:c_after]
        contexts = np.concatenate([left, right]).astype(np.int64)[None]
        logs: np.ndarray = self.log_probabilities(contexts)[0]
        return logs

    def _contexts_after(self, sentences: Sequence[np.ndarray], pad_id: int) -> np.ndarray:
        """Return the context words of the word after each sentence, (n, c); a model of following words has none."""
        contexts = np.full((len(sentences), self.config.positions), pad_id, np.int64)
        c = self.config.context
        for row, sentence in zip(contexts, sentences, strict=True):
            last = sentence[-c:] if c else sentence[:0]
            row[c - len(last) : c] = last
        return contexts

    def next_distributions(self, sentences: Sequence[np.ndarray], pad_id: int, team: Team) -> Iterator[np.ndarray]:
        """Yield log P(w|h) of every word, (V,) float64, after each sentence.

        The result of a sentence does not depend on the others.
        """
        from ncelm.kernels import generate
        from ncelm.kernels.panels import LANES

        buffers = generate.vocabulary_scores(self.predict(self._contexts_after(sentences, pad_id)), self.biases.size)
        table, biases = map(records.read_only, (self.target_vectors, self.biases))
        team.run(generate.score_vocabulary, generate.SCORE_PHASES, table, biases, buffers)
        for first in range(0, len(sentences), LANES):
            panel = np.ascontiguousarray(buffers.scores[first // LANES].T)  # (LANES, V)
            for scores in panel[: len(sentences) - first]:
                yield _normalise(scores.astype(np.float64))

    def draw_next(
        self,
        sentences: Sequence[np.ndarray],
        pad_id: int,
        banned: Sequence[int],
        temperature: float,
        uniforms: np.ndarray,
        team: Team,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return a random word after each sentence, and its log P(w|h), both (n,).

        Words are drawn with probabilities proportional to P(w|h)^(1 / temperature), `banned` words never. `uniforms`
        (n,) are random numbers in [0, 1). The result of a sentence does not depend on the others.
        """
        from ncelm.kernels import generate

        buffers = generate.vocabulary_scores(self.predict(self._contexts_after(sentences, pad_id)), self.biases.size)
        table, biases = map(records.read_only, (self.target_vectors, self.biases))
        allowed = np.ones(self.biases.size, np.float32)
        allowed[list(banned)] = 0.0
        words, logs = np.empty(len(sentences), np.int64), np.empty(len(sentences))
        team.run(
            generate.draw_words, generate.DRAW_PHASES, table, biases, allowed, np.float32(1.0 / temperature),
            uniforms, buffers, words, logs,
        )  # fmt: skip
        return words, logs

    def scores(self, contexts: np.ndarray) -> np.ndarray:
        """Return the unnormalised scores s(w, h) = q̂ᵀ q_w + b_w of every word (Eq. 3): contexts (n, c) → (n, V)."""
        scores: np.ndarray = self.predict(contexts) @ self.target_vectors.T + self.biases
        return scores

    def log_probabilities(self, contexts: np.ndarray) -> np.ndarray:
        """Return log P(w|h) of every word, exactly normalised (Eq. 1): contexts (n, c) → (n, V) float64."""
        return _normalise(self.scores(contexts).astype(np.float64))


def _normalise(scores: np.ndarray) -> np.ndarray:
    """Return log P of scores (Eq. 1), normalised along the last axis."""
    largest = scores.max(axis=-1, keepdims=True)
    normalised: np.ndarray = scores - (largest + np.log(np.exp(scores - largest).sum(axis=-1, keepdims=True)))
    return normalised


def _each_by_itself(n: int) -> records.Contexts:
    """Return the contexts of n words as if all were different."""
    return records.Contexts(np.arange(n), np.arange(n + 1))


def _equal_contexts(corpus: records.Corpus, c: int, first: int, last: int) -> records.Contexts:
    """Return which of the words at positions first..last - 1 have equal contexts of c words."""
    from ncelm.kernels import plan

    begin = max(first - corpus.before, 0)
    ids = corpus.ids[begin : last + c - corpus.before]  # with the context words of the first and the last word
    numbers = np.empty(ids.size, np.int32)
    slots = np.full(1 << (2 * ids.size).bit_length(), -1, np.int32)  # at most half full
    plan.number_contexts(corpus._replace(ids=ids), c, slots, numbers)
    numbers = numbers[first - begin : last - begin]
    words = np.argsort(numbers, kind="stable")
    ends = np.flatnonzero(np.diff(numbers[words], append=-1)) + 1
    return records.Contexts(words, np.append(0, ends))
