"""The rivals: noise-contrastive training of the log-bilinear model as users of PyTorch write it.

Nothing here is held back. Minibatches are whole tensor operations, all contexts are looked up once before training
begins. The plain rival is what one writes first: sparse embeddings, `torch.multinomial`, `torch.bmm`. Where there are
several natural ways to write the same thing (how to draw noise words, how to multiply, sparse or dense gradients),
`fastest_trainer` times them on the machine and text at hand: the tuned rival is the fastest of them, and the compiled
rival the fastest through torch.compile.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (as everyone writes it)
from torch import Tensor, nn

from ncelm.corpus import TokenStore
from ncelm.noise import Noise

Sampler = Callable[[tuple[int, int]], Tensor]


@dataclass(frozen=True, eq=False)
class Task:
    """What both sides are to do, the same for both."""

    parameters: dict[str, np.ndarray]  # where training starts: the arrays of ncelm's LogBilinear
    store: TokenStore
    noise: Noise
    noise_samples: int  # k
    batch: int  # B
    table_rate: float  # word vectors and biases
    matrix_rate: float  # context matrices


@dataclass(frozen=True)
class Way:
    """One way to write the model. All ways compute the same; which is fastest depends on machine and vocabulary."""

    scores: str  # a key of SCORES
    sparse: bool  # gradients of the tables: only the rows of the minibatch, or the whole table
    compiled: bool  # through torch.compile

    def __str__(self) -> str:
        compiled = "torch.compile, " if self.compiled else ""
        return f"{compiled}scores by {self.scores}, {'sparse' if self.sparse else 'dense'} gradients"


# q̂ᵀ q_w of every example and word: (B, d), (B, k + 1, d) → (B, k + 1)
SCORES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "bmm": lambda predicted, vectors: torch.bmm(predicted.unsqueeze(1), vectors.transpose(1, 2)).squeeze(1),
    "einsum": lambda predicted, vectors: torch.einsum("bd,bwd->bw", predicted, vectors),
    "multiply and sum": lambda predicted, vectors: (predicted.unsqueeze(1) * vectors).sum(2),
}


PLAIN_WAY, PLAIN_DRAWING = Way("bmm", sparse=True, compiled=False), "torch.multinomial"


class LogBilinear(nn.Module):
    """The model and its NCE loss, summed over a minibatch."""

    def __init__(self, task: Task, way: Way) -> None:
        super().__init__()

        def table(values: np.ndarray) -> nn.Embedding:
            return nn.Embedding.from_pretrained(torch.tensor(values), freeze=False, sparse=way.sparse)

        start = task.parameters
        self.context_vectors = table(start["context_vectors"])  # r_w, (V + 1, d)
        self.target_vectors = table(start["target_vectors"])  # q_w, (V, d)
        self.biases = table(start["biases"][:, None])  # b_w, (V, 1)
        self.matrices = nn.Parameter(torch.tensor(start["matrices"]))  # C_i, (c, d, d)
        log_k_noise = task.noise.log_probabilities + np.log(task.noise_samples)
        self.register_buffer("log_k_noise", torch.tensor(log_k_noise, dtype=torch.float32))  # log k·Pn(w), (V,)
        is_data = torch.zeros(task.batch, 1 + task.noise_samples)  # (B, k + 1): the target comes first
        is_data[:, 0] = 1.0
        self.register_buffer("is_data", is_data)
        self.scores = SCORES[way.scores]

    def forward(self, contexts: Tensor, words: Tensor) -> Tensor:
        """Eq. 2, 3 and 13: contexts (B, c), words (B, k + 1), the target first → the loss of the minibatch."""
        _, d, _ = self.matrices.shape
        vectors = self.context_vectors(contexts).flatten(1)  # (B, c d)
        side_by_side = self.matrices.transpose(0, 1).reshape(d, -1)  # [C_1 C_2 …], (d, c d): one product instead of c
        predicted = F.linear(vectors, side_by_side)  # q̂, (B, d)
        scores = self.scores(predicted, self.target_vectors(words)) + self.biases(words).squeeze(2)  # (B, k + 1)
        logits = scores - self.log_k_noise.take(words)  # (B, k + 1)
        return F.binary_cross_entropy_with_logits(logits, self.is_data, reduction="sum")


class Trainer:
    """Plain SGD over minibatches in random order, noise drawn anew for each."""

    def __init__(self, task: Task, way: Way, sampler: Sampler, examples: tuple[Tensor, Tensor]) -> None:
        self.way, self.batch, self.noise_samples = way, task.batch, task.noise_samples
        self.contexts, self.targets = examples
        self.draw_noise = sampler
        self.model = LogBilinear(task, way)
        self.loss = torch.compile(self.model) if way.compiled else self.model
        tables = [self.model.context_vectors, self.model.target_vectors, self.model.biases]
        self.optimizer = torch.optim.SGD(
            [
                {"params": [table.weight for table in tables], "lr": task.table_rate},
                {"params": [self.model.matrices], "lr": task.matrix_rate},
            ]
        )
        self.order, self.place = torch.empty(0, dtype=torch.int64), 0

    def train(self, minibatches: int) -> float:
        """Train on so many more minibatches; return the mean loss of a word."""
        total = 0.0
        for _ in range(minibatches):
            chosen = self._next_examples()
            noise = self.draw_noise((self.batch, self.noise_samples))
            words = torch.cat([self.targets[chosen].unsqueeze(1), noise], dim=1)  # (B, k + 1)
            total += self.step(self.contexts[chosen], words)
        return total / (minibatches * self.batch)

    def step(self, contexts: Tensor, words: Tensor) -> float:
        """One update; return the loss of the minibatch before it."""
        self.optimizer.zero_grad()
        loss = self.loss(contexts, words)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters, by the names they have in ncelm."""
        model = self.model
        tensors = {
            "context_vectors": model.context_vectors.weight,
            "target_vectors": model.target_vectors.weight,
            "biases": model.biases.weight.squeeze(1),
            "matrices": model.matrices,
        }
        return {name: tensor.detach().numpy() for name, tensor in tensors.items()}

    def _next_examples(self) -> Tensor:
        """The examples of the next whole minibatch; each epoch has an order of its own."""
        if self.place + self.batch > len(self.order):
            self.order, self.place = torch.randperm(len(self.targets)), 0
        self.place += self.batch
        return self.order[self.place - self.batch : self.place]


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


def samplers(task: Task) -> dict[str, Sampler]:
    """Ways to draw noise words from the unigram distribution, with replacement."""
    size = len(task.noise.probabilities)
    probabilities = torch.tensor(task.noise.probabilities, dtype=torch.float32)
    keep = torch.tensor(task.noise.threshold / 2.0**32, dtype=torch.float32)
    alias = torch.tensor(task.noise.alias, dtype=torch.int64)
    counts = torch.tensor(task.store.vocabulary.counts, dtype=torch.int64).clamp(min=1)  # as in Noise.from_counts
    every_token = torch.arange(size).repeat_interleave(counts)

    def multinomial(shape: tuple[int, int]) -> Tensor:
        return torch.multinomial(probabilities, shape[0] * shape[1], replacement=True).view(shape)

    def alias_table(shape: tuple[int, int]) -> Tensor:
        column = torch.randint(size, shape)
        return torch.where(torch.rand(shape) < keep.take(column), column, alias.take(column))

    def tokens(shape: tuple[int, int]) -> Tensor:
        return every_token.take(torch.randint(len(every_token), shape))

    return {"torch.multinomial": multinomial, "alias table": alias_table, "random tokens of the text": tokens}


def fastest_trainer(task: Task, sampler: Sampler, examples: tuple[Tensor, Tensor], compiled: bool) -> Trainer:
    """The fastest way to train here, found by trying them all."""
    # compiled code is fused, whichever way the product is written: one way is enough, and compiling is slow
    scores = ["multiply and sum"] if compiled else list(SCORES)
    ways = [Way(name, sparse, compiled) for name, sparse in product(scores, [True, False])]
    trainers = {str(way): Trainer(task, way, sampler, examples) for way in ways}
    best = fastest({name: lambda trainer=trainer: trainer.train(10) for name, trainer in trainers.items()})
    return Trainer(task, trainers[best].way, sampler, examples)


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
