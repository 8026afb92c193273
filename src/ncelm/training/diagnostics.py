"""Diagnostics of training: statistics of importance weights, and divergence."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ncelm.errors import NcelmError
from ncelm.io.files import is_finite_number
from ncelm.kernels.threads import Team
from ncelm.models.base import WordModel, corpus_view
from ncelm.text.store import TokenStore
from ncelm.text.vocabulary import Vocabulary
from ncelm.training.backend import ImportanceWeights

SUMMARIES_PER_EPOCH = 20  # of importance weights; the model is probed as often
PROBED_WORDS = 2000  # words of the validation text on which a model is probed for divergence
MAX_RELATIVE_PERPLEXITY = 100.0  # an overfitted model may be worse than the uniform one, but not by this factor


# -- importance weights ----------------------------------------------------------------------------------------------


@dataclass
class WeightSummary:
    """Importance weights of successive minibatches. Sums are kept, so that a resumed run continues them."""

    first_step: int
    steps: int
    sum_effective_samples: float  # over the minibatches, of their mean effective sample sizes
    least_effective_samples: float
    sum_samples: float
    largest_log_weight: float

    def add(self, weights: ImportanceWeights) -> None:
        """Add a minibatch."""
        self.steps += 1
        self.sum_effective_samples += weights.effective_samples
        self.least_effective_samples = min(self.least_effective_samples, weights.least_effective_samples)
        self.sum_samples += weights.samples
        self.largest_log_weight = max(self.largest_log_weight, weights.largest_log_weight)

    def record(self) -> dict[str, float]:
        """Return the summary as it is written to the metrics."""
        return {
            "step": self.first_step,
            "effective_samples": self.sum_effective_samples / self.steps,
            "least_effective_samples": self.least_effective_samples,
            "samples": self.sum_samples / self.steps,
            "largest_log_weight": self.largest_log_weight,
        }

    def is_valid(self) -> bool:
        """Return whether all fields are possible. A checkpoint is not trusted."""
        counts, numbers = (self.first_step, self.steps), list(asdict(self).values())
        return (
            all(type(count) is int and count >= 0 for count in counts)
            and self.steps > 0
            and all(map(is_finite_number, numbers))
        )


@dataclass
class WeightTrace:
    """Importance weights of an epoch: summaries of equal intervals, and the last few minibatches."""

    interval: int  # minibatches per summary
    summaries: list[WeightSummary] = field(default_factory=list)
    last: list[tuple[int, ImportanceWeights]] = field(default_factory=list)  # step and weights; not in checkpoints

    def add(self, step: int, weights: ImportanceWeights) -> None:
        """Add a minibatch."""
        if len(self.summaries) <= step // self.interval:
            least, largest = weights.least_effective_samples, weights.largest_log_weight
            self.summaries.append(WeightSummary(step, 0, 0.0, least, 0.0, largest))
        self.summaries[-1].add(weights)
        self.last = [*self.last[-4:], (step, weights)]

    def clear(self) -> None:
        """Forget the summaries, at the end of an epoch."""
        self.summaries.clear()

    def record(self) -> dict[str, Any]:
        """Return the fields of a metrics record: statistics of the epoch, and all summaries. Empty without weights."""
        if not self.summaries:
            return {}
        steps = sum(summary.steps for summary in self.summaries)
        return {
            "effective_samples": sum(summary.sum_effective_samples for summary in self.summaries) / steps,
            "least_effective_samples": min(summary.least_effective_samples for summary in self.summaries),
            "samples": sum(summary.sum_samples for summary in self.summaries) / steps,
            "largest_log_weight": max(summary.largest_log_weight for summary in self.summaries),
            "weights": [summary.record() for summary in self.summaries],
        }

    def last_record(self, vocabulary: Vocabulary) -> dict[str, Any]:
        """Return the largest weights of the last minibatches, for the record of a divergence."""
        if not self.last:
            return {}
        words = [*vocabulary.words, "<s>"]  # the out-of-sentence word comes last
        last = [
            {
                "step": step,
                "effective_samples": weights.effective_samples,
                "largest_log_weight": weights.largest_log_weight,
                "share": weights.share,
                "word": words[weights.word],
                "context": [words[word] for word in weights.context],
            }
            for step, weights in self.last
        ]
        return {"last_weights": last}


def summary_interval(steps_per_epoch: int) -> int:
    """Return the number of minibatches per summary of importance weights."""
    return -(-steps_per_epoch // SUMMARIES_PER_EPOCH)


# -- divergence ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Divergence:
    """Where and why training diverged."""

    epoch: int  # the first is 1
    step: int
    reason: str
    seconds: float  # of training
    best_epoch: int  # 0 if there is no earlier model

    def record(self) -> dict[str, Any]:
        """Return the last record of the metrics."""
        return {
            "epoch": self.epoch,
            "step": self.step,
            "diverged": self.reason,
            "seconds": self.seconds,
            "best_epoch": self.best_epoch,
            "finished": True,
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Divergence | None":
        """Return the divergence that a record of the metrics describes, if it does."""
        if not isinstance(record, dict) or "diverged" not in record:
            return None
        epoch, step, best = record.get("epoch"), record.get("step"), record.get("best_epoch")
        if type(epoch) is not int or type(step) is not int or type(best) is not int:
            raise NcelmError("the metrics of this run are damaged: train again with another `out`")
        return cls(epoch, step, str(record["diverged"]), 0.0, best)

    def message(self, metrics: Path, learning_rate: float) -> str:
        """Return the error message."""
        kept = (
            f"the best model before that (epoch {self.best_epoch}) is kept in {metrics.parent}"
            if self.best_epoch
            else "there is no earlier model to keep"
        )
        return (
            f"training diverged in epoch {self.epoch}, step {self.step}: {self.reason}; {kept}; see {metrics}, and "
            f"train again with another `out` and a lower `learning_rate` than {learning_rate:g}"
        )


def validation_problem(perplexity: float, vocabulary_size: int) -> str | None:
    """Return why a validation perplexity means divergence; None if it does not."""
    if perplexity < MAX_RELATIVE_PERPLEXITY * vocabulary_size:  # False for NaN
        return None
    return f"validation perplexity is {perplexity:.6g}"


def probe_problem(perplexity: float, vocabulary_size: int) -> str | None:
    """Return why the perplexity of a probe within an epoch means divergence; None if it does not."""
    if perplexity < vocabulary_size:  # False for NaN
        return None
    return f"perplexity is {perplexity:.4g}, worse than that of a uniform distribution over {vocabulary_size:,} words"


def probe(model: WordModel, store: TokenStore, team: Team) -> float:
    """Return the perplexity of the first words of the validation split, or of the training split without one."""
    split = store.split("valid" if "valid" in store.splits else "train")
    corpus = corpus_view(split, store)
    scores, log_z = model.score_positions(corpus, 0, min(split.tokens, PROBED_WORDS), team)
    with np.errstate(over="ignore"):
        return float(np.exp(np.mean(log_z - scores)))
