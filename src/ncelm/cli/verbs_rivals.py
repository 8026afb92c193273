"""The verbs of the command line for the rivals of neural models, and for several models together."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, cast

from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, Positional, arg, subcommand

from ncelm.cli.ui import Json, NewRun, Store, Threads, metrics, on_terminal, print_json, progress_bar, show
from ncelm.language_model import LanguageModel


@dataclass(frozen=True)
class NgramTrain:
    """Estimate an n-gram model of a store's training text, with interpolated modified Kneser–Ney smoothing.

    A text of 50 million words takes a minute or two; how much memory at most is said before the start. Where a text is
    so small that its counts give no discounts (Chen & Goodman 1999), 0.5, 1 and 1.5 are taken from n-grams seen once,
    twice, more often, and a line says so. `evaluate`, `score` and `mix` take RUN as they take others.
    """

    store: Store
    out: NewRun
    order: Annotated[int, arg(help="The longest n-grams: 5 means that four words before are looked at. 1 to 10.")] = 5
    min_counts: Annotated[
        tuple[int, ...],
        arg(help="Leave n-grams out that were seen less often: a number for each order, the last for all higher ones. "
            "1 1 2 is SRILM's habit, and a much smaller model."),
    ] = (1,)  # fmt: skip
    json: Json = False

    def run(self) -> None:
        """Estimate and say what came of it."""
        from ncelm.models.ngram.model import FALLBACK_DISCOUNTS, memory_bytes, train_ngram
        from ncelm.text.store import TokenStore

        store = TokenStore.open(self.store)
        if on_terminal():
            most = memory_bytes(store.split("train"), self.order)
            print(f"{store.split('train').tokens:,} tokens; takes at most {most / 1e6:,.0f} MB", file=sys.stderr)
        with progress_bar(unit=" steps", desc="counting") as bar:
            record = train_ngram(store, self.out, self.order, self.min_counts, show(bar))
        fallback = [str(n) for n, discount in enumerate(record["discounts"], 1) if discount["fallback"]]
        if fallback:
            print(
                f"ncelm: too few n-grams of order {', '.join(fallback)} to estimate discounts from: "
                f"{', '.join(f'{d:g}' for d in FALLBACK_DISCOUNTS)} are used",
                file=sys.stderr,
            )
        if self.json:
            print_json({"run": str(self.out), **record})
            return
        quality = f"validation perplexity {record['valid_perplexity']:.2f}, " if "valid_perplexity" in record else ""
        print(
            f"{self.out}: {quality}{sum(record['ngrams']):,} n-grams "
            f"({', '.join(f'{count:,}' for count in record['ngrams'])}), {record['seconds']:.1f} s"
        )


@dataclass(frozen=True)
class ToArpa:
    """Write an n-gram model as an ARPA file, which KenLM, SRILM and others read.

    Packed if the name of the file ends with .gz. Logarithms in it are to base 10, as is the rule there.
    """

    run_folder: Annotated[Path, Positional, arg(metavar="RUN", help="A folder that `ncelm ngram …` has made.")]
    file: Annotated[Path, Positional, arg(metavar="FILE", help="The file to write; it must not exist.")]
    json: Json = False

    def run(self) -> None:
        """Write the file."""
        from ncelm.arpa import export_arpa

        with progress_bar(unit=" n-grams", unit_scale=True, desc="writing") as bar:
            lm = export_arpa(self.run_folder, self.file, show(bar))
        if lm.boundary == "stream":
            print(
                "ncelm: contexts of this model run on from one sentence to the next, so it knows nothing of <s>: other "
                "tools should begin a sentence after </s>, or prepare the text with --boundary sentence",
                file=sys.stderr,
            )
        counts = ngrams(lm)
        if self.json:
            print_json({"file": str(self.file), "ngrams": counts})
        else:
            print(f"{self.file}: {sum(counts):,} n-grams of order 1 to {len(counts)}")


@dataclass(frozen=True)
class FromArpa:
    """Read an ARPA file, packed (gzip) or not, whoever made it, and make a run of it.

    Everything is checked: counts, sections, numbers, and that the beginning of every n-gram is there. A file without
    <unk> gives unknown words a probability of 10^-99.
    """

    file: Annotated[Path, Positional, arg(metavar="FILE", help="The ARPA file.")]
    out: NewRun
    like: Annotated[
        Path | None,
        arg(help="A store or run with the same words: they get its ids, and text is read as there, so that the model "
            "can be evaluated on that store and mixed with models of it."),
    ] = None  # fmt: skip
    lowercase: Annotated[bool, arg(help="Turn text to lower case before it is scored; words stand between blanks.")] = (
        False
    )
    json: Json = False

    def run(self) -> None:
        """Read the file and say what was in it."""
        from ncelm.arpa import import_arpa

        with progress_bar(unit=" n-grams", unit_scale=True, desc="reading") as bar:
            lm = import_arpa(self.file, self.out, self.like, self.lowercase, show(bar))
        counts = ngrams(lm)
        if self.json:
            print_json({"run": str(self.out), "vocabulary": len(lm.vocabulary), "ngrams": counts})
        else:
            print(f"{self.out}: {sum(counts):,} n-grams of order 1 to {len(counts)}, {len(lm.vocabulary):,} words")


@dataclass(frozen=True)
class Ngram:
    """N-gram models with modified Kneser–Ney smoothing: train them, write and read ARPA files."""

    verb: OmitSubcommandPrefixes[
        OmitArgPrefixes[
            Annotated[NgramTrain, subcommand("train")]
            | Annotated[ToArpa, subcommand("to-arpa")]
            | Annotated[FromArpa, subcommand("from-arpa")]
        ]
    ]

    def run(self) -> None:
        """Run the verb."""
        self.verb.run()


@dataclass(frozen=True)
class Lsa:
    """Latent semantic analysis: a vector for each word, by the sentences of the training text that it occurs in.

    `neighbors` and `export` take RUN; `evaluate` and `score` do not, for LSA gives words no probabilities.
    """

    verb: Annotated[Literal["train"], Positional, arg(help="What to do.")]
    store: Store
    out: NewRun
    dim: Annotated[int, arg(help="Numbers in a vector: how many singular values are kept.")] = 300
    seed: Annotated[int, arg(help="Decides where the search for singular vectors starts; the result is the same.")] = 0
    json: Json = False

    def run(self) -> None:
        """Decompose and say how long it took."""
        from ncelm.models.lsa import train_lsa

        with progress_bar(unit=" products", desc="decomposing (about three products for each of --dim)") as bar:
            lsa = train_lsa(self.store, self.out, self.dim, self.seed, lambda done: show(bar)(done, None))
        (record,) = metrics(self.out)
        count, dim = lsa.unit_vectors.shape
        if self.json:
            print_json({"run": str(self.out), "vectors": count, "dim": dim, "seconds": record["seconds"]})
        else:
            print(f"{self.out}: {count:,} vectors of {dim} dimensions, {record['seconds']:.1f} s")


@dataclass(frozen=True)
class Pmi:
    """Pointwise mutual information: which words stand in one sentence more often than chance would have it.

    For `complete`, alone or in an ensemble (`blend`); it gives words neither probabilities nor vectors.
    """

    verb: Annotated[Literal["train"], Positional, arg(help="What to do.")]
    store: Store
    out: NewRun
    json: Json = False

    def run(self) -> None:
        """Note down who stands where, and say how long it took."""
        from ncelm.models.pmi import train_pmi

        pmi = train_pmi(self.store, self.out)
        (record,) = metrics(self.out)
        words, sentences = pmi.words.size, pmi.sentence_begins.size - 1
        if self.json:
            print_json({"run": str(self.out), "sentences": sentences, "words": words, "seconds": record["seconds"]})
        else:
            print(f"{self.out}: {words:,} words in {sentences:,} sentences, {record['seconds']:.1f} s")


@dataclass(frozen=True)
class Mix:
    """Mix models: P(w|h) is a weighted mean of theirs. An n-gram and a neural model mixed are better than either.

    Weights are learned (by EM, in seconds) on the validation split of the store, unless they are given. OUT names its
    parts, which must stay where they are; `evaluate` and `score` take it as they take others.
    """

    runs: Annotated[tuple[Path, ...], Positional, arg(metavar="RUN…", help="Two runs or more, trained on one store.")]
    out: NewRun
    weights: Annotated[tuple[float, ...] | None, arg(help="One weight for each run, instead of learning them.")] = None
    store: Annotated[Path | None, arg(help="The token store, if it is no longer where it was in training.")] = None
    split: Annotated[str, arg(help="Part of the token store to learn weights on: not the one to test on.")] = "valid"
    threads: Threads = None
    json: Json = False

    def run(self) -> None:
        """Mix and print the weights."""
        from ncelm.combine import mix
        from ncelm.models.mixture import Mixture

        with progress_bar(unit=" words", unit_scale=True, desc="scoring") as bar:
            lm = mix(
                self.runs,
                self.out,
                weights=self.weights,
                store=self.store,
                split=self.split,
                threads=self.threads,
                progress=show(bar),
            )
        assert isinstance(lm.model, Mixture)
        weights = lm.model.weights.tolist()
        if self.json:
            print_json({"run": str(self.out), "weights": weights})
        else:
            parts = (f"{weight:.3f} {name}" for name, weight in zip(self.runs, weights, strict=True))
            print(f"{self.out}: " + " + ".join(parts))


@dataclass(frozen=True)
class Blend:
    """Let several models, LSA and PMI too, choose the word for a gap together: for `complete`.

    Scores, normalised and as they are, are added up with weights that are learned on questions made from held-out text:
    a rare word of a sentence is the answer, rare words that an n-gram model might have expected there (if one of the
    runs is one) are the distractors. OUT names its parts, which must stay where they are.
    """

    runs: Annotated[tuple[Path, ...], Positional, arg(metavar="RUN…", help="Two runs or more, trained on one store.")]
    out: NewRun
    store: Annotated[Path | None, arg(help="The token store, if it is no longer where it was in training.")] = None
    split: Annotated[str, arg(help="Part of the token store to make questions from.")] = "valid"
    seed: Annotated[int, arg(help="Decides which questions are made.")] = 0
    threads: Threads = None
    json: Json = False

    def run(self) -> None:
        """Learn the weights and print how well all do on the questions that were made."""
        from ncelm.combine import blend

        with progress_bar(unit=" questions", desc="answering") as bar:
            model, record = blend(
                self.runs,
                self.out,
                store=self.store,
                split=self.split,
                seed=self.seed,
                threads=self.threads,
                progress=show(bar),
            )
        if self.json:
            print_json({"run": str(self.out), "weights": model.weights.tolist(), **record})
            return
        for path, weights, percent in zip(self.runs, model.weights.tolist(), record["parts_percent"], strict=True):
            print(f"{percent:5.1f} %  {path}, weights {' '.join(f'{weight:.4f}' for weight in weights)}")
        print(
            f"{self.out}: {record['percent']:.1f} % right of {record['questions']:,} questions made from the "
            f"{self.split} text, by cross-validation"
        )


def ngrams(lm: LanguageModel) -> list[int]:
    """How many n-grams of each order a model has."""
    from ncelm.models.ngram.model import NGramModel

    return list(cast(NGramModel, lm.model).counts)
