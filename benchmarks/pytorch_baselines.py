"""The rivals: the log-bilinear model as users of PyTorch train it.

Nothing here is held back. Minibatches are whole tensor operations, all contexts are looked up once before training
begins. There are three kinds of work: noise words of its own for each word of the text ("pairs"), noise words shared by
the minibatch ("shared"), and the exact softmax ("exact"). For each there is what one writes first, by autograd and
torch.optim; for pairs also the best that could be written by hand. Where there are several natural ways to write the
same thing, `fastest` times them on the machine and text at hand.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (as everyone writes it)
from torch import Tensor, nn

from ncelm.noise import Noise
from ncelm.text.store import TokenStore

Work = Literal["pairs", "shared", "exact"]
Sampler = Callable[[tuple[int, ...]], Tensor]
Batch = tuple[Tensor, ...]  # contexts (B, c); then words (B, k + 1), or targets (B,) and noise (K,), or targets (B,)


@dataclass(frozen=True, eq=False)
class Task:
    """What both sides are to do, the same for both."""

    work: Work
    parameters: dict[str, np.ndarray]  # where training starts: the arrays of ncelm's LogBilinear
    store: TokenStore
    noise: Noise
    noise_samples: int  # k, or K if they are shared
    batch: int  # B
    table_rate: float  # word vectors and biases
    matrix_rate: float  # context matrices
    adagrad_start: float | None  # sums of squares at the start; plain SGD if None

    @property
    def log_k_noise(self) -> Tensor:
        """log k·Pn(w), (V,)."""
        return torch.tensor(self.noise.log_probabilities + np.log(self.noise_samples), dtype=torch.float32)


# -- by autograd -------------------------------------------------------------------------------------------------------


class LogBilinear(nn.Module):
    """The model (Eq. 2 and 3) and its loss, summed over a minibatch."""

    def __init__(self, task: Task, sparse: bool) -> None:
        super().__init__()

        def table(values: np.ndarray) -> nn.Embedding:
            return nn.Embedding.from_pretrained(torch.tensor(values), freeze=False, sparse=sparse)

        start = task.parameters
        self.context_vectors = table(start["context_vectors"])  # r_w, (V + 1, d)
        self.target_vectors = table(start["target_vectors"])  # q_w, (V, d)
        self.biases = table(start["biases"][:, None])  # b_w, (V, 1)
        self.matrices = nn.Parameter(torch.tensor(start["matrices"]))  # C_i, (c, d, d)
        self.register_buffer("log_k_noise", task.log_k_noise)
        if task.work == "pairs":
            is_data = torch.zeros(task.batch, 1 + task.noise_samples)  # (B, k + 1): the target comes first
            is_data[:, 0] = 1.0
            self.register_buffer("is_data", is_data)

    def predict(self, contexts: Tensor) -> Tensor:
        """q̂, (B, d), of contexts (B, c)."""
        d = self.matrices.shape[1]
        vectors = self.context_vectors(contexts).flatten(1)  # (B, c d)
        side_by_side = self.matrices.transpose(0, 1).reshape(d, -1)  # [C_1 C_2 …], (d, c d): one product instead of c
        return F.linear(vectors, side_by_side)


class Pairs(LogBilinear):
    """Eq. 13 with k noise words for each word."""

    def forward(self, contexts: Tensor, words: Tensor) -> Tensor:
        """Contexts (B, c), words (B, k + 1), the target first → the loss of the minibatch."""
        predicted, vectors = self.predict(contexts), self.target_vectors(words)  # (B, d), (B, k + 1, d)
        products = torch.bmm(vectors, predicted.unsqueeze(2)).squeeze(2)  # (B, k + 1)
        logits = products + self.biases(words).squeeze(2) - self.log_k_noise.take(words)
        return F.binary_cross_entropy_with_logits(logits, self.is_data, reduction="sum")


class SharedNoise(LogBilinear):
    """Eq. 13 with K noise words for the whole minibatch, so that their scores are one matrix product."""

    def forward(self, contexts: Tensor, targets: Tensor, noise: Tensor) -> Tensor:
        """Contexts (B, c), targets (B,), noise (K,) → the loss of the minibatch."""
        predicted = self.predict(contexts)  # (B, d)
        data = (predicted * self.target_vectors(targets)).sum(1)  # (B,)
        data = data + self.biases(targets).squeeze(1) - self.log_k_noise.take(targets)
        shifts = self.biases(noise).squeeze(1) - self.log_k_noise.take(noise)  # (K,)
        scores = torch.addmm(shifts, predicted, self.target_vectors(noise).T)  # (B, K)
        return -F.logsigmoid(data).sum() + F.softplus(scores).sum()


class ExactSoftmax(LogBilinear):
    """−log P(w|h), Eq. 1, by the sum over the vocabulary."""

    def forward(self, contexts: Tensor, targets: Tensor) -> Tensor:
        """Contexts (B, c), targets (B,) → the loss of the minibatch."""
        scores = F.linear(self.predict(contexts), self.target_vectors.weight, self.biases.weight.squeeze(1))  # (B, V)
        return F.cross_entropy(scores, targets, reduction="sum")


LOSSES: dict[Work, type[LogBilinear]] = {"pairs": Pairs, "shared": SharedNoise, "exact": ExactSoftmax}


class Trainer:
    """Minibatches in random order, noise drawn anew for each; the rest is for those below to say."""

    way: str

    def __init__(self, task: Task, sampler: Sampler, examples: tuple[Tensor, Tensor]) -> None:
        self.task, self.draw_noise = task, sampler
        self.contexts, self.targets = examples
        self.order, self.place = torch.empty(0, dtype=torch.int64), 0
        self.rate = 1.0  # a schedule may change it: a factor of all rates

    def train(self, minibatches: int) -> float:
        """Train on so many more minibatches; return the mean loss of a word."""
        total = sum(self.step(*self._next_batch()) for _ in range(minibatches))
        return total / (minibatches * self.task.batch)

    def step(self, *batch: Tensor) -> float:
        """One update; return the loss of the minibatch before it."""
        raise NotImplementedError

    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters, by the names they have in ncelm."""
        raise NotImplementedError

    def _next_batch(self) -> Batch:
        """The next whole minibatch; each epoch has an order of its own."""
        size, k = self.task.batch, self.task.noise_samples
        if self.place + size > len(self.order):
            self.order, self.place = torch.randperm(len(self.targets)), 0
        self.place += size
        chosen = self.order[self.place - size : self.place]
        contexts, targets = self.contexts[chosen], self.targets[chosen]
        match self.task.work:
            case "pairs":
                return contexts, torch.cat([targets.unsqueeze(1), self.draw_noise((size, k))], dim=1)
            case "shared":
                return contexts, targets, self.draw_noise((k,))
        return contexts, targets


class Autograd(Trainer):
    """As one writes it: a module, backward() and an optimizer."""

    def __init__(
        self, task: Task, sampler: Sampler, examples: tuple[Tensor, Tensor], *, sparse: bool, compiled: bool = False
    ) -> None:
        super().__init__(task, sampler, examples)
        self.model = LOSSES[task.work](task, sparse)
        self.loss = torch.compile(self.model) if compiled else self.model
        tables = [self.model.context_vectors, self.model.target_vectors, self.model.biases]
        groups = [
            {"params": [table.weight for table in tables], "lr": task.table_rate},
            {"params": [self.model.matrices], "lr": task.matrix_rate},
        ]
        if task.adagrad_start is None:
            self.optimizer: torch.optim.Optimizer = torch.optim.SGD(groups)
        else:
            self.optimizer = torch.optim.Adagrad(groups, eps=1e-8, initial_accumulator_value=task.adagrad_start)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.way = f"{'torch.compile, ' if compiled else ''}{'sparse' if sparse else 'dense'} gradients"

    def step(self, *batch: Tensor) -> float:
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * self.rate
        self.optimizer.zero_grad()
        loss = self.loss(*batch)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def arrays(self) -> dict[str, np.ndarray]:
        model = self.model
        tensors = {
            "context_vectors": model.context_vectors.weight,
            "target_vectors": model.target_vectors.weight,
            "biases": model.biases.weight.squeeze(1),
            "matrices": model.matrices,
        }
        return {name: tensor.detach().numpy() for name, tensor in tensors.items()}


# -- by hand -----------------------------------------------------------------------------------------------------------


def _scores_and_gradients(
    vectors: Tensor, side_by_side: Tensor, targets: Tensor, shifts: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The dense middle of a step, which torch.compile may fuse.

    Gathered context vectors (B, c d), [C_1 C_2 …] (d, c d), gathered target vectors (B, k + 1, d) and b_w − log k·Pn(w)
    (B, k + 1) → the loss, q̂ (B, d), dJ/ds (B, k + 1) and dJ/dq̂ (B, d).
    """
    predicted = vectors @ side_by_side.T  # q̂
    logits = torch.bmm(targets, predicted.unsqueeze(2)).squeeze(2) + shifts  # (B, k + 1)
    wrong = torch.sigmoid(logits)
    wrong[:, 0] -= 1.0  # P(D = 1|w), and for the data P(D = 1|w) − 1: −dJ/ds
    loss = F.softplus(logits).sum() - logits[:, 0].sum()
    gradients = torch.bmm(wrong.unsqueeze(1), targets).squeeze(1)  # −dJ/dq̂
    return loss, predicted, wrong, gradients


class ByHand(Trainer):
    """Without autograd: every row is gathered once and its gradient added in place; plain SGD, pairs only."""

    def __init__(
        self, task: Task, sampler: Sampler, examples: tuple[Tensor, Tensor], *, scatter: str, compiled: bool = False
    ) -> None:
        super().__init__(task, sampler, examples)
        start = {name: torch.tensor(values) for name, values in task.parameters.items()}
        self.context_vectors, self.target_vectors, self.biases, self.matrices = (
            start[name] for name in ("context_vectors", "target_vectors", "biases", "matrices")
        )
        self.log_k_noise = task.log_k_noise
        self.middle = torch.compile(_scores_and_gradients) if compiled else _scores_and_gradients
        self.scatter = scatter
        self.way = f"by hand, {'torch.compile, ' if compiled else ''}gradients of targets by {scatter}"

    @torch.no_grad()
    def step(self, *batch: Tensor) -> float:
        contexts, words = batch  # (B, c), (B, k + 1)
        size, d = len(contexts), self.matrices.shape[1]
        rate, matrix_rate = self.task.table_rate * self.rate, self.task.matrix_rate * self.rate
        vectors = self.context_vectors.index_select(0, contexts.flatten()).view(size, -1)  # (B, c d)
        side_by_side = self.matrices.transpose(0, 1).reshape(d, -1)  # (d, c d)
        flat = words.flatten()  # (B (k + 1),)
        targets = self.target_vectors.index_select(0, flat).view(*words.shape, d)  # (B, k + 1, d)
        shifts = (self.biases - self.log_k_noise).take(words)  # (B, k + 1)
        loss, predicted, wrong, gradients = self.middle(vectors, side_by_side, targets, shifts)
        if self.scatter == "index_add":
            rows = (wrong.unsqueeze(2) * predicted.unsqueeze(1)).view(-1, d)  # (B (k + 1), d)
            self.target_vectors.index_add_(0, flat, rows, alpha=-rate)
        else:  # the matrix of dJ/ds has a row for each word of the vocabulary and a column for each example
            examples = torch.arange(size).repeat_interleave(words.shape[1])
            shape = (len(self.target_vectors), size)
            coefficients = torch.sparse_coo_tensor(
                torch.stack([flat, examples]), wrong.flatten(), shape, check_invariants=False
            )
            self.target_vectors.add_(torch.sparse.mm(coefficients, predicted), alpha=-rate)
        self.biases.index_add_(0, flat, wrong.flatten(), alpha=-rate)
        back = gradients @ side_by_side  # (B, c d)
        self.context_vectors.index_add_(0, contexts.flatten(), back.view(-1, d), alpha=-rate)
        by_matrix = (gradients.T @ vectors).view(d, -1, d).transpose(0, 1)  # (c, d, d)
        self.matrices.add_(by_matrix, alpha=-matrix_rate)
        return loss.item()

    def arrays(self) -> dict[str, np.ndarray]:
        names = ("context_vectors", "target_vectors", "biases", "matrices")
        return {name: getattr(self, name).numpy() for name in names}


# -- examples and noise ------------------------------------------------------------------------------------------------


def all_examples(store: TokenStore, context: int) -> tuple[Tensor, Tensor]:
    """Every context (N, c) and target (N,) of the training text, looked up once."""
    train = store.split("train")
    ids = torch.from_numpy(train.ids.astype(np.int64))  # (N,)
    position = torch.arange(len(ids))
    first = torch.zeros_like(position)  # the first word that a context may see
    if store.boundary == "sentence":
        starts = torch.from_numpy(train.sentences.astype(np.int64))
        first = starts[:-1].repeat_interleave(starts.diff())
    pad = torch.tensor(store.pad_id)
    columns = [
        torch.where(position - back >= first, ids[(position - back).clamp(min=0)], pad)
        for back in range(context, 0, -1)
    ]
    return torch.stack(columns, dim=1), ids


def samplers(noise: Noise, store: TokenStore) -> dict[str, Sampler]:
    """Ways to draw noise words from the unigram distribution, with replacement."""
    size = len(noise.probabilities)
    probabilities = torch.tensor(noise.probabilities, dtype=torch.float32)
    keep = torch.tensor(noise.threshold / 2.0**32, dtype=torch.float32)
    alias = torch.tensor(noise.alias, dtype=torch.int64)
    counts = torch.tensor(store.vocabulary.counts, dtype=torch.int64).clamp(min=1)  # as in Noise.from_counts
    every_token = torch.arange(size).repeat_interleave(counts)

    def multinomial(shape: tuple[int, ...]) -> Tensor:
        return torch.multinomial(probabilities, int(np.prod(shape)), replacement=True).view(shape)

    def alias_table(shape: tuple[int, ...]) -> Tensor:
        column = torch.randint(size, shape)
        return torch.where(torch.rand(shape) < keep.take(column), column, alias.take(column))

    def tokens(shape: tuple[int, ...]) -> Tensor:
        return every_token.take(torch.randint(len(every_token), shape))

    return {"torch.multinomial": multinomial, "alias table": alias_table, "random tokens of the text": tokens}


def fastest(candidates: dict[str, Callable[[], object]], rounds: int = 5) -> str:
    """The name of the candidate that takes least time, tried by turns; the best time of each counts."""
    seconds = {name: float("inf") for name in candidates}
    for candidate in candidates.values():
        candidate()  # warm up
    for _ in range(rounds):
        for name, candidate in candidates.items():
            began = time.perf_counter()
            candidate()
            seconds[name] = min(seconds[name], time.perf_counter() - began)
    return min(seconds, key=lambda name: seconds[name])
