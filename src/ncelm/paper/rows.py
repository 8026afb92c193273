"""The rows of Tables 1 and 2 of the paper, with the published test perplexities."""

from dataclasses import dataclass
from typing import Any, Literal

from ncelm.losses.functions import Member
from ncelm.training.config import NCE, ImportanceSampling, Linear, MaximumLikelihood, TrainConfig
from ncelm.training.recipes import ptb_best, ptb_fast, ptb_ml, ptb_nce, ptb_shared

Table = Literal["table1", "table2"]
Part = Literal["paper", "bigram", "log_normalizers", "importance", "extensions"]
TYPICAL_EPOCHS = 14  # after which early stopping usually ends a run
# Published test perplexities of NCE by the number of noise samples
PAPER_UNIGRAM = {1: 192.5, 5: 172.6, 25: 163.1, 100: 159.1}
PAPER_UNIFORM = {1: 291.0, 5: 233.7, 25: 195.1, 100: 173.2}


@dataclass(frozen=True)
class Row:
    """One row of a table."""

    key: str  # prefix of the names of its run directories
    name: str
    config: TrainConfig
    paper: float | None = None  # published test perplexity
    part: Part = "paper"  # section of the report
    test_each_epoch: bool = False  # record test perplexity after each epoch, to find the time to reach a target

    @property
    def cost(self) -> float:
        """Approximate cost in arbitrary units, for estimates of the remaining time."""
        c, d = self.config.model.positions, self.config.model.dim
        match self.config.loss:
            case MaximumLikelihood():
                scored = 10_000.0
            case ImportanceSampling(samples=k, min_effective_samples=effective):
                scored = k + 30 * effective
            case NCE(samples=k, shared_noise=True):
                scored = k / 3
            case loss:
                scored = loss.samples
        schedule = self.config.schedule
        return (c * d + 100 + scored) * (schedule.epochs if isinstance(schedule, Linear) else TYPICAL_EPOCHS)


def rows_of(table: Table) -> list[Row]:
    """Return all rows of a table."""
    return table1() if table == "table1" else table2()


def _nce_rows() -> list[Row]:
    """Return the rows of NCE with unigram noise, which both tables have."""
    nce = ptb_nce()
    return [
        Row(f"nce-unigram-{k}", f"NCE, k = {k}", nce.with_changes(noise_samples=k), paper, test_each_epoch=k == 25)
        for k, paper in PAPER_UNIGRAM.items()
    ]


def _importance_rows() -> list[Row]:
    """Return rows of importance sampling, at the learning rate of NCE and at a tenth of it."""
    nce = ptb_nce().with_changes(loss="importance", epochs=4)
    adaptive = {"noise_samples": 100, "min_effective_samples": 100.0, "max_samples": 1000}
    kinds: dict[str, dict[str, Any]] = {
        "k = 25": {"noise_samples": 25},
        "k = 100": {"noise_samples": 100},
        "100 effective samples, at most 1,000": adaptive,
        "k = 100, bigram proposal": {"noise_samples": 100, "noise": "bigram"},
    }
    return [
        Row(
            f"importance-{number}-rate{rate:g}",
            f"IS, {name}, rate {rate:g}",
            nce.with_changes(learning_rate=rate, **changes),
            part="importance",
        )
        for rate in (nce.learning_rate, nce.learning_rate / 10)
        for number, (name, changes) in enumerate(kinds.items())
    ]


def table1() -> list[Row]:
    """Return the rows of Table 1, of experiments that the paper describes in its text, and of further experiments."""
    nce = ptb_nce()
    family: tuple[Member, ...] = ("root", "square")
    return [
        Row("ml", "ML", ptb_ml(), 163.5, test_each_epoch=True),
        *_nce_rows(),
        Row("nce-learned-25", "NCE, k = 25", nce.with_changes(log_normalizers="learned"), part="log_normalizers"),
        *_importance_rows(),
        Row("fast", "ptb-fast: two epochs of Adagrad, k = 50", ptb_fast(), part="extensions", test_each_epoch=True),
        Row("shared", "ptb-shared: 1,000 noise samples shared by a minibatch", ptb_shared(), part="extensions"),
        Row("best", "ptb-best: the same with dropout and weight decay", ptb_best(), part="extensions"),
        *(
            Row(
                f"family-{member}-25",
                f"family of NCE: {member}, k = 25",
                nce.with_changes(loss="family", family_member=member),
                part="extensions",
            )
            for member in family
        ),
    ]


def table2() -> list[Row]:
    """Return the rows of Table 2, noise distributions and numbers of samples, and rows of bigram noise."""
    nce = ptb_nce()
    return [
        *_nce_rows(),
        *(
            Row(f"nce-uniform-{k}", f"NCE, uniform, k = {k}", nce.with_changes(noise="uniform", noise_samples=k), paper)
            for k, paper in PAPER_UNIFORM.items()
        ),
        *(
            Row(
                f"nce-bigram-{k}",
                f"NCE, bigram, k = {k}",
                nce.with_changes(noise="bigram", noise_samples=k),
                part="bigram",
            )
            for k in (1, 5, 25)
        ),
    ]
