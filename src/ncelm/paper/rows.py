"""The rows of the paper's tables 1 and 2."""

from dataclasses import dataclass
from typing import Any, Literal

from ncelm.losses.functions import Member
from ncelm.training.config import TrainConfig
from ncelm.training.recipes import ptb_best, ptb_fast, ptb_ml, ptb_nce, ptb_shared

Table = Literal["table1", "table2"]
TYPICAL_EPOCHS = 14  # after which early stopping usually ends a run
PAPER_UNIGRAM = {1: 192.5, 5: 172.6, 25: 163.1, 100: 159.1}
PAPER_UNIFORM = {1: 291.0, 5: 233.7, 25: 195.1, 100: 173.2}


@dataclass(frozen=True)
class Row:
    """One line of a table."""

    key: str  # names its run folders
    name: str
    config: TrainConfig
    paper: float | None = None  # the paper's test perplexity
    part: str = "paper"  # of the table
    test_each_epoch: bool = False  # record test perplexity after each epoch, to find the time to reach a target

    @property
    def cost(self) -> float:
        """Approximate cost in arbitrary units, for estimates of the remaining time."""
        config = self.config
        c, d = config.model.positions, config.model.dim
        scored = {"ml": 10_000.0, "importance": float(config.noise_samples + 30 * config.effective_samples)}.get(
            config.estimator, config.noise_samples / (3.0 if config.shared_noise else 1.0)
        )
        return (c * d + 100 + scored) * (config.epochs if config.schedule == "linear" else TYPICAL_EPOCHS)


def rows_of(table: Table) -> list[Row]:
    """All rows of a table."""
    return table1() if table == "table1" else table2()


def _nce_rows() -> list[Row]:
    nce = ptb_nce()
    return [
        Row(f"nce-unigram-{k}", f"NCE, k = {k}", nce.with_changes(noise_samples=k), paper, test_each_epoch=k == 25)
        for k, paper in PAPER_UNIGRAM.items()
    ]


def _importance_rows() -> list[Row]:
    """Importance sampling at NCE's learning rate and at a tenth of it; as many samples as NCE, more, and adaptive."""
    nce = ptb_nce().with_changes(estimator="importance", epochs=4)
    adaptive = {"noise_samples": 100, "effective_samples": 100.0, "max_samples": 1000}
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
    """Table 1: training algorithms; then what the paper tells in words; then beyond the paper."""
    nce = ptb_nce()
    family: tuple[Member, ...] = ("root", "square")
    return [
        Row("ml", "ML", ptb_ml(), 163.5, test_each_epoch=True),
        *_nce_rows(),
        Row("nce-learned-25", "NCE, k = 25", nce.with_changes(constants="learned"), part="log_normalizers"),
        *_importance_rows(),
        Row("fast", "ptb-fast: two epochs of Adagrad, k = 50", ptb_fast(), part="beyond", test_each_epoch=True),
        Row("shared", "ptb-shared: 1,000 noise words shared by a minibatch", ptb_shared(), part="beyond"),
        Row("best", "ptb-best: the same with dropout and a penalty", ptb_best(), part="beyond"),
        *(
            Row(
                f"family-{member}-25",
                f"family of NCE: {member}, k = 25",
                nce.with_changes(estimator="family", member=member),
                part="beyond",
            )
            for member in family
        ),
    ]


def table2() -> list[Row]:
    """Table 2: kinds of noise, and how much of it."""
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
