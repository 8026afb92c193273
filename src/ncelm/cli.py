"""Words on a terminal: parse them, call the room that knows, show progress, print the answer."""

import _thread
import io
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import tyro
from tqdm import tqdm
from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, Positional, arg, subcommand

from ncelm import __version__
from ncelm.errors import NcelmError
from ncelm.export import VectorFormat, export_vectors
from ncelm.language_model import LanguageModel, WordScore, load_scorer
from ncelm.recipes import RECIPES, recipe
from ncelm.text import read_line_blocks, read_lines
from ncelm.training import Progress, TrainConfig, train

Json = Annotated[bool, arg(help="Answer in JSON, for programs.")]
Threads = Annotated[int | None, arg(help="Threads to use; all cores by default. The result is the same to the bit.")]
Run = Annotated[Path, Positional, arg(metavar="RUN", help="A folder that `train`, `ngram …` or `mix` has made.")]
VectorRun = Annotated[Path, Positional, arg(metavar="RUN", help="A folder that `train` or `lsa train` has made.")]
Store = Annotated[Path, Positional, arg(metavar="STORE", help="A folder that `ncelm prepare` has made.")]
NewRun = Annotated[Path, arg(help="The run: a folder that does not exist yet.")]
Table = Annotated[
    Literal["context", "target"],
    arg(help="Vectors of words as context (r_w) or as predicted words (q_w)."),
]
_RECIPES_HELP = "Where the defaults come from. " + " ".join(
    f"{name}: {(make.__doc__ or '').splitlines()[0]}" for name, make in RECIPES.items()
)


@dataclass(frozen=True)
class Prepare:
    """Turn text into a token store, which `ncelm train` reads.

    Either text that is ready (one sentence a line, blanks between words):

        ncelm prepare --train F --valid F --test F --out STORE

    or raw prose, files or folders, which is split into sentences (Punkt) and words (Treebank rules):

        ncelm prepare TEXT… --out STORE --lowercase --min-count 5 --punkt train

    Files may be packed (.gz) or in tar archives (.tar, .tar.gz, .tar.xz, .tar.bz2); of a folder, all files below it are
    read but hidden ones. Works of Project Gutenberg lose their headers and footers with --gutenberg.
    """

    texts: Annotated[
        tuple[Path, ...], Positional, arg(metavar="TEXT…", help="Files, folders or tar archives of raw prose.")
    ] = ()
    out: Annotated[Path, arg(help="The store: a folder that does not exist yet.")] = field(kw_only=True)
    train: Annotated[tuple[Path, ...], arg(help="Training text, one sentence a line.")] = ()
    valid: Annotated[tuple[Path, ...], arg(help="Validation text, one sentence a line.")] = ()
    test: Annotated[tuple[Path, ...], arg(help="Test text, one sentence a line.")] = ()
    boundary: Annotated[
        Literal["stream", "sentence"] | None,
        arg(help="Contexts run on across sentence ends (stream: the Penn Treebank habit, default with --train) or end "
            "with the sentence (sentence: default for prose)."),
    ] = None  # fmt: skip
    lowercase: Annotated[bool, arg(help="Turn all words to lower case.")] = False
    min_count: Annotated[int, arg(help="Words seen less often in training become <unk>.")] = 1
    vocabulary_size: Annotated[
        int | None,
        arg(help="Keep only the most frequent words, so many with <unk> and </s>; all by default."),
    ] = None
    valid_sentences: Annotated[
        int | None,
        arg(help="Set so many random sentences aside for validation (prose: 5 %, at most 500, by default)."),
    ] = None
    test_sentences: Annotated[int | None, arg(help="The same for testing.")] = None
    seed: Annotated[int, arg(help="Decides which sentences are set aside.")] = 0
    punkt: Annotated[
        Literal["english", "train"],
        arg(
            help="How to find sentences: by NLTK's English model, which must be installed, or one trained on this text."
        ),
    ] = "english"
    encoding: Annotated[str, arg(help="Of the text files.")] = "utf-8"
    gutenberg: Annotated[
        bool,
        arg(help="The texts are works of Project Gutenberg: take headers and footers off. STORE/works.tsv tells, work "
            "by work, what was taken off. Works that are not in --encoding are read as latin-1."),
    ] = False  # fmt: skip
    skip_broken: Annotated[
        bool, arg(help="With --gutenberg: leave works out that are empty or binary, instead of stopping.")
    ] = False
    workers: Annotated[int | None, arg(help="Processes to use; all cores by default.")] = None
    json: Json = False

    def run(self) -> None:
        """Prepare and say what came of it."""
        from ncelm.preparing import prepare
        from ncelm.unpacking import REPORT, summary

        with _bar(unit="B", unit_scale=True, desc="reading") as bar:
            store = prepare(
                self.texts or None,
                out=self.out,
                train=self.train or None,
                valid=self.valid or None,
                test=self.test or None,
                boundary=self.boundary,
                lowercase=self.lowercase,
                min_count=self.min_count,
                vocabulary_size=self.vocabulary_size,
                valid_sentences=self.valid_sentences,
                test_sentences=self.test_sentences,
                seed=self.seed,
                punkt=self.punkt,
                encoding=self.encoding,
                gutenberg=self.gutenberg,
                skip_broken=self.skip_broken,
                workers=self.workers,
                progress=_show(bar),
            )
        splits = {
            name: {"tokens": split.tokens, "sentences": split.n_sentences, "unknown": split.unknown}
            for name, split in store.splits.items()
        }
        works = summary(self.out) if self.gutenberg else None
        if self.json:
            answer = {"store": str(self.out), "vocabulary": len(store.vocabulary), "splits": splits}
            _print_json(answer | ({"works": works} if works else {}))
            return
        if works:
            print(
                f"{works['works']:,} works, {works['without_header']} without a known header, "
                f"{works['without_footer']} without a known footer, {works['skipped']} skipped: see {self.out / REPORT}"
            )
        if not splits["train"]["unknown"]:
            print(
                "ncelm: no word of the training text is unknown, so a model cannot learn how likely unknown words are: "
                "consider --min-count 2",
                file=sys.stderr,
            )
        print(f"{self.out}: {len(store.vocabulary):,} words in the vocabulary, boundary {store.boundary}")
        for name, counts in splits.items():
            unknown = 100 * counts["unknown"] / counts["tokens"]
            print(
                f"  {name:5} {counts['tokens']:>12,} tokens in {counts['sentences']:,} sentences, "
                f"{unknown:.1f} % unknown"
            )


@dataclass(frozen=True)
class Train:
    """Train a model on a token store.

    The defaults below are those of the recipe; `ncelm train --recipe ptb-nce --help` shows another recipe's. What was
    learned is in RUN/model.safetensors, how it went in RUN/metrics.jsonl. A run that was stopped, by Ctrl-C or by a
    power cut, goes on with --resume, to the same result.
    """

    store: Store
    out: Annotated[Path, arg(help="The run: a folder that does not exist yet; with --resume it may.")]
    recipe: Annotated[str, arg(metavar="NAME", help=_RECIPES_HELP)] = "default"
    config: OmitArgPrefixes[TrainConfig] = field(default_factory=TrainConfig)
    threads: Threads = None
    resume: Annotated[bool, arg(help="Go on from the last checkpoint; start if there is none.")] = False
    checkpoint_minutes: Annotated[
        float, arg(help="Write a checkpoint so often within an epoch, beside the one after each epoch.")
    ] = 5.0
    json: Json = False

    def run(self) -> None:
        """Train, with a progress bar, and say what came of it."""
        from ncelm.corpus import TokenStore

        store = TokenStore.open(self.store)
        sizes = self.config.sizes(len(store.vocabulary), store.split("train").tokens)
        if _on_terminal():
            print(
                f"{store.split('train').tokens:,} tokens, {sizes.vocabulary:,} words; "
                f"training takes about {sizes.memory_bytes / 1e6:,.0f} MB of memory beside the program",
                file=sys.stderr,
            )
        with _bar(unit=" words", unit_scale=True) as bar:
            result = train(
                store,
                self.out,
                self.config,
                threads=self.threads,
                resume=self.resume,
                checkpoint_minutes=self.checkpoint_minutes,
                progress=lambda at: _show_training(bar, at),
            )
        if self.json:
            _print_json({"run": str(self.out), **result})
            return
        quality = ""
        if "valid_perplexity" in result:
            best = min(line["valid_perplexity"] for line in _metrics(self.out))
            quality = f"validation perplexity {best:.2f} (epoch {result['best_epoch']}), "
        print(
            f"{self.out}: {quality}{_count(result['epoch'], 'epoch')}, {result['seconds']:.1f} s of training, "
            f"{result['words'] * result['epoch'] / max(result['seconds'], 1e-9):,.0f} words/s"
        )


@dataclass(frozen=True)
class Evaluate:
    """Measure perplexity, exactly normalised, with unknown words and sentence ends counted.

    log Z is the logarithm of the sum of exp(score) over all words: near 0 if the model is self-normalised.
    """

    run_folder: Run
    split: Annotated[str, arg(help="Part of the token store: test, valid or train.")] = "test"
    store: Annotated[Path | None, arg(help="The token store, if it is no longer where it was in training.")] = None
    file: Annotated[
        Path | None,
        arg(help="Measure this text instead, one sentence a line (- for standard input), each by itself."),
    ] = None
    encoding: Annotated[str, arg(help="Of --file.")] = "utf-8"
    threads: Threads = None
    json: Json = False

    def run(self) -> None:
        """Evaluate and print."""
        from ncelm.corpus import TokenStore

        lm = LanguageModel.load(self.run_folder, self.threads)
        if self.file is not None and (self.store or self.split != "test"):
            raise NcelmError("give either --file or a --split of a --store, not both")
        if self.file is not None:
            result = lm.evaluate(read_lines(self.file, self.encoding))
            what = str(self.file)
        else:
            result = lm.evaluate_split(TokenStore.open(self.store or self._store_of(lm)), self.split)
            what = self.split
        if self.json:
            _print_json(result.as_dict())
            return
        kind = "perplexity given both sides" if lm.two_sided else "perplexity"
        # n-grams and mixtures are normalised as they are
        log_z = f", log Z {result.log_z_mean:+.3f} ± {result.log_z_std:.3f}" if result.log_z_std else ""
        print(
            f"{what}: {kind} {result.perplexity:.2f} over {result.tokens:,} tokens ({result.sentences:,} sentence ends "
            f"and {result.unknown:,} unknown words among them){log_z}"
        )

    def _store_of(self, lm: LanguageModel) -> Path:
        """Where the model says its store was."""
        if lm.store_path is None:
            raise NcelmError("this model names no token store: say which with --store, or give text by --file")
        if not lm.store_path.exists():
            raise NcelmError(
                f"the token store is no longer at {lm.store_path}: say where with --store, or give text by --file"
            )
        return lm.store_path


@dataclass(frozen=True)
class Score:
    """Print the log-probability of each line: natural logarithm, exactly normalised, the end of the sentence counted.

    Lines are split into words as the training text was. One answer for each line, empty lines too.
    """

    run_folder: Run
    file: Annotated[
        Path, Positional, arg(metavar="FILE", help="Text, one sentence a line; standard input by default.")
    ] = Path("-")
    per_word: Annotated[bool, arg(help="Each word with its log-probability; unknown words are marked.")] = False
    no_end: Annotated[bool, arg(help="Leave the end of the sentence out; it counts as a word, as in KenLM.")] = False
    encoding: Annotated[str, arg(help="Of the text.")] = "utf-8"
    threads: Threads = None
    json: Json = False

    def run(self) -> None:
        """Score line by line, in bounded memory."""
        lm = LanguageModel.load(self.run_folder, self.threads)
        if lm.two_sided:
            print(
                "ncelm: this model sees both sides of a word, so these are sums of log P(word | both sides), not "
                "sentence probabilities",
                file=sys.stderr,
            )
        for lines in read_line_blocks(self.file, self.encoding, keep_blank=True):
            for words in lm.full_scores_of(lines, end=not self.no_end):
                print(self._line(words))
            sys.stdout.flush()  # whoever feeds a pipe line by line may be waiting

    def _line(self, words: list[WordScore]) -> str:
        total = sum(word.log_probability for word in words)
        if self.json:
            answer: dict[str, Any] = {
                "log_probability": total,
                "tokens": len(words),
                "unknown": sum(word.unknown for word in words),
            }
            if self.per_word:
                answer["words"] = [vars(word) for word in words]
            return json.dumps(answer, allow_nan=False)
        if not self.per_word:
            return f"{total:.6f}"
        each = (f"{word.word} {word.log_probability:.4f}{' <unk>' if word.unknown else ''}" for word in words)
        return "\t".join([*each, f"total {total:.6f}"])


@dataclass(frozen=True)
class Complete:
    """Fill the gap in sentences: choose among words, or find the likeliest.

    A file of questions, as those of the MSR Sentence Completion Challenge (CSV, or its original machine format):

        ncelm complete RUN questions.csv --answers answers.csv

    or one sentence:

        ncelm complete RUN "He lives alone in _____ ." --choices London,sleep,yesterday

    Models that see one side choose by the probability of the whole sentence, two-sided ones by that of the word given
    both sides, LSA by similarity to the other words.
    """

    run_folder: Annotated[Path, Positional, arg(metavar="RUN", help="A folder of any model that ncelm has made.")]
    questions: Annotated[
        str, Positional, arg(metavar="QUESTIONS", help="A file of questions, or a sentence with a gap: _____.")
    ]
    answers: Annotated[Path | None, arg(help="The right answers to a file of questions: tell how many were found.")] = (
        None
    )
    choices: Annotated[str | None, arg(help="Words for the gap of a sentence, with commas between them.")] = None
    count: Annotated[int, arg(help="Without choices: how many of the likeliest words to show.")] = 10
    unnormalised: Annotated[
        bool, arg(help="Choose by scores as they are, as if they were normalised. With --answers both are told anyway.")
    ] = False
    each: Annotated[bool, arg(help="With --answers: show every question, too.")] = False
    threads: Threads = None
    json: Json = False

    def run(self) -> None:
        """Choose and print."""
        from ncelm import completion

        if completion.GAP.search(self.questions) and not os.path.exists(self.questions):  # noqa: PTH110 (a sentence may be too long for a Path)
            self._fill()
        else:
            self._answer()

    def _fill(self) -> None:
        """One sentence."""
        from ncelm import completion

        if self.answers:
            raise NcelmError("--answers go with a file of questions, not with a sentence")
        scorer = load_scorer(self.run_folder, self.threads)
        if self.choices is None:
            found = completion.likeliest(scorer, self.questions, self.count)
        else:
            choices = tuple(choice.strip() for choice in self.choices.split(","))
            question = completion.Question("the sentence", self.questions, choices)
            (ranking,) = completion.rank(scorer, [question], normalised=not self.unnormalised)
            found = [(choices[i], ranking.scores[i]) for i in ranking.order]
        if self.json:
            _print_json({"words": [{"word": word, "score": score} for word, score in found]})
            return
        width = max(len(word) for word, _ in found)
        for word, score in found:
            known = "" if scorer.text.words(word)[0] in scorer.vocabulary else "  <unk>"
            print(f"{word:{width}}  {score:.4f}{known}")

    def _answer(self) -> None:
        """A file of questions."""
        from ncelm import completion

        if self.choices is not None:
            raise NcelmError("--choices go with a sentence that has a gap (_____); a file of questions has its own")
        questions = completion.read_questions(Path(self.questions))
        answers = completion.read_answers(self.answers, questions) if self.answers else None
        scorer = load_scorer(self.run_folder, self.threads)
        with _bar(unit=" questions", desc="answering") as bar:
            by_kind = completion.rank_both(scorer, questions, _show(bar))
        rankings = by_kind["unnormalised" if self.unnormalised else "normalised"]
        found = {kind: completion.accuracy(each, answers) for kind, each in by_kind.items()} if answers else {}
        if self.json:
            _print_json(completion.as_dict(questions, rankings, answers, found))
            return
        if not answers or self.each:
            for question, ranking in zip(questions, rankings, strict=True):
                print(completion.shown(question, ranking, answers[question.id] if answers else None))
        for kind, accuracy in found.items():
            low, high = accuracy.interval
            print(
                f"{accuracy.percent:.1f} % right ({accuracy.right:,} of {accuracy.questions:,}; with 95 % confidence "
                f"{low:.1f} to {high:.1f} %), {kind}"
            )


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
        from ncelm.corpus import TokenStore
        from ncelm.ngram import FALLBACK_DISCOUNTS, memory_bytes, train_ngram

        store = TokenStore.open(self.store)
        if _on_terminal():
            most = memory_bytes(store.split("train"), self.order)
            print(f"{store.split('train').tokens:,} tokens; takes at most {most / 1e6:,.0f} MB", file=sys.stderr)
        with _bar(unit=" steps", desc="counting") as bar:
            record = train_ngram(store, self.out, self.order, self.min_counts, _show(bar))
        fallback = [str(n) for n, discount in enumerate(record["discounts"], 1) if discount["fallback"]]
        if fallback:
            print(
                f"ncelm: too few n-grams of order {', '.join(fallback)} to estimate discounts from: "
                f"{', '.join(f'{d:g}' for d in FALLBACK_DISCOUNTS)} are used",
                file=sys.stderr,
            )
        if self.json:
            _print_json({"run": str(self.out), **record})
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

        with _bar(unit=" n-grams", unit_scale=True, desc="writing") as bar:
            lm = export_arpa(self.run_folder, self.file, _show(bar))
        if lm.boundary == "stream":
            print(
                "ncelm: contexts of this model run on from one sentence to the next, so it knows nothing of <s>: other "
                "tools should begin a sentence after </s>, or prepare the text with --boundary sentence",
                file=sys.stderr,
            )
        counts = _ngrams(lm)
        if self.json:
            _print_json({"file": str(self.file), "ngrams": counts})
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

        with _bar(unit=" n-grams", unit_scale=True, desc="reading") as bar:
            lm = import_arpa(self.file, self.out, self.like, self.lowercase, _show(bar))
        counts = _ngrams(lm)
        if self.json:
            _print_json({"run": str(self.out), "vocabulary": len(lm.vocabulary), "ngrams": counts})
        else:
            print(f"{self.out}: {sum(counts):,} n-grams of order 1 to {len(counts)}, {len(lm.vocabulary):,} words")


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
        from ncelm.lsa import train_lsa

        with _bar(unit=" products", desc="decomposing (about three products for each of --dim)") as bar:
            lsa = train_lsa(self.store, self.out, self.dim, self.seed, lambda done: _show(bar)(done, None))
        (record,) = _metrics(self.out)
        count, dim = lsa.unit_vectors.shape
        if self.json:
            _print_json({"run": str(self.out), "vectors": count, "dim": dim, "seconds": record["seconds"]})
        else:
            print(f"{self.out}: {count:,} vectors of {dim} dimensions, {record['seconds']:.1f} s")


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
        from ncelm.mixing import mix
        from ncelm.mixture import Mixture

        with _bar(unit=" words", unit_scale=True, desc="scoring") as bar:
            lm = mix(
                self.runs,
                self.out,
                weights=self.weights,
                store=self.store,
                split=self.split,
                threads=self.threads,
                progress=_show(bar),
            )
        assert isinstance(lm.model, Mixture)
        weights = lm.model.weights.tolist()
        if self.json:
            _print_json({"run": str(self.out), "weights": weights})
        else:
            parts = (f"{weight:.3f} {name}" for name, weight in zip(self.runs, weights, strict=True))
            print(f"{self.out}: " + " + ".join(parts))


@dataclass(frozen=True)
class Blend:
    """Let several models, LSA too, choose the word for a gap together: for `complete`.

    Scores are added up with weights that are learned on questions made from held-out text: a rare word of a sentence
    is the answer, rare words that an n-gram model might have expected there (if one of the runs is one) are the
    distractors. OUT names its parts, which must stay where they are.
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
        from ncelm.ensemble import blend

        model, record = blend(
            self.runs, self.out, store=self.store, split=self.split, seed=self.seed, threads=self.threads
        )
        weights = model.weights.tolist()
        if self.json:
            _print_json({"run": str(self.out), "weights": weights, **record})
            return
        for path, weight, percent in zip(self.runs, weights, record["parts_percent"], strict=True):
            print(f"{weight:8.4f}  {percent:5.1f} %  {path}")
        print(
            f"{self.out}: {record['percent']:.1f} % right of {record['questions']:,} questions made from the "
            f"{self.split} text, by cross-validation"
        )


@dataclass(frozen=True)
class Neighbors:
    """Show the words whose vectors are nearest to a word's, by the cosine of the angle."""

    run_folder: VectorRun
    words: Annotated[tuple[str, ...], Positional, arg(metavar="WORD…")]
    count: Annotated[int, arg(help="How many to show.")] = 10
    table: Table = "context"
    json: Json = False

    def run(self) -> None:
        """Look up and print."""
        if not self.words:
            raise NcelmError("no word was given: name at least one")
        lm = load_scorer(self.run_folder)
        found = {word: lm.neighbors(word, self.count, self.table) for word in self.words}
        if self.json:
            _print_json({word: [{"word": w, "cosine": c} for w, c in nearest] for word, nearest in found.items()})
            return
        for word, nearest in found.items():
            print(f"{word}: " + ", ".join(f"{other} {cosine:.2f}" for other, cosine in nearest))


@dataclass(frozen=True)
class Export:
    """Write the word vectors to a file that other tools read, such as gensim's KeyedVectors."""

    run_folder: VectorRun
    file: Annotated[Path, Positional, arg(metavar="FILE", help="The file to write; it must not exist.")]
    to: Annotated[
        VectorFormat, arg(help="word2vec's text or binary form, or GloVe's (text without the first line).")
    ] = "word2vec"
    table: Table = "context"
    json: Json = False

    def run(self) -> None:
        """Write the file."""
        count, dim = export_vectors(load_scorer(self.run_folder), self.file, self.to, self.table)
        if self.json:
            _print_json({"file": str(self.file), "vectors": count, "dim": dim})
        else:
            print(f"{self.file}: {count:,} vectors of {dim} dimensions")


@dataclass(frozen=True)
class Demo:
    """Train on English that every machine has, by NCE and by maximum likelihood, and show what comes of it.

    The text is the prose in Python's own documentation strings and help topics. Takes about a minute, most of it
    maximum likelihood, and another minute the first time, to compile.
    """

    out: Annotated[Path, arg(help="Where the store, both runs and the plot go: a folder that does not exist yet.")] = (
        Path("demo")
    )
    threads: Threads = None
    json: Json = False

    def run(self) -> None:
        """Run the demonstration."""
        from ncelm.demo import demo

        def say(line: str) -> None:
            print(line, file=sys.stderr if self.json else sys.stdout, flush=True)

        with _bar(unit=" words", unit_scale=True, leave=False) as bar:
            result = demo(self.out, self.threads, say, lambda at: _show_training(bar, at))
        if self.json:
            _print_json(result)


@dataclass(frozen=True)
class Reproduce:
    """Train every row of a table of the paper (Mnih & Teh 2012) and put our figures beside the published ones.

    Rows that are finished are not trained again, so a reproduction that was stopped goes on where it was. OUT gets
    table1.md, table1.json, plots and, in OUT/runs, an ordinary run of every row and seed. Table 1 takes about an hour
    and a half on two cores, much of it maximum likelihood; table 2 half an hour more; table 3, sentence completion on
    48 million words, about four hours.
    """

    table: Annotated[Literal["table1", "table2", "table3"], Positional, arg(help="Which table.")]
    data: Annotated[
        Path,
        arg(help="Tables 1 and 2: a folder with ptb.train.txt, ptb.valid.txt and ptb.test.txt. Table 3: one with "
            "holmes/holmes_training.tar.xz, msrscc/testing_data.csv and msrscc/test_answer.csv."),
    ]  # fmt: skip
    out: Annotated[Path, arg(help="Where everything goes; two tables may share it, and then share their rows.")]
    seeds: Annotated[int, arg(help="Tables 1 and 2: train every row so many times, from other beginnings.")] = 3
    rows: Annotated[tuple[str, ...], arg(help="Only these rows, by their names in OUT/runs; all by default.")] = ()
    finished_only: Annotated[bool, arg(help="Train nothing: write the table of what is finished so far.")] = False
    threads: Threads = None
    json: Json = False

    def run(self) -> None:
        """Reproduce and say where the result is."""
        if self.table == "table3":
            self._table3()
            return
        from ncelm.reproduce import RowProgress, reproduce

        with _bar(unit=" words", unit_scale=True, leave=False) as bar:

            def progress(at: RowProgress) -> None:
                left = f", about {at.seconds_left / 60:.0f} min left in all" if at.seconds_left is not None else ""
                if at.training:
                    _show_training(bar, at.training, f"{at.number}/{at.runs} {at.name}{left}: ")
                else:
                    bar.reset()

            answer = reproduce(
                self.table,
                self.data,
                self.out,
                seeds=self.seeds,
                rows=self.rows,
                finished_only=self.finished_only,
                threads=self.threads,
                progress=progress,
            )
        if self.json:
            _print_json(answer)
            return
        width = max(len(row["name"]) for row in answer["rows"])
        for row in answer["rows"]:
            ours = row["test_perplexity"]
            diverged = sum("diverged" in run for run in row["runs"])
            print(
                f"{row['name']:{width}} "
                + (f"{ours['mean']:6.1f}" if ours else "     –")
                + (f" ± {ours['std']:.1f}" if ours and ours["std"] is not None else "      ")
                + (f"   paper {row['paper']:.1f}" if row["paper"] else "")
                + (f"   {diverged} of {len(row['runs'])} diverged" if diverged else "")
            )
        print(f"{self.out / self.table}.md has the whole table")

    def _table3(self) -> None:
        from ncelm.table3 import RowProgress, reproduce_table3

        with _bar(unit=" words", unit_scale=True, leave=False) as bar:

            def progress(at: RowProgress) -> None:
                where = f"{at.number}/{at.rows} {at.name}: "
                if at.training:
                    _show_training(bar, at.training, where)
                else:
                    bar.reset()
                    bar.set_description(where)

            answer = reproduce_table3(
                self.data,
                self.out,
                rows=self.rows,
                finished_only=self.finished_only,
                threads=self.threads,
                progress=progress,
            )
        if self.json:
            _print_json(answer)
            return
        width = max(len(row["name"]) for row in answer["rows"])
        for row in answer["rows"]:
            paper, test = row["paper"], row.get("test")
            print(
                f"{row['name']:{width}} {row['normalised']['percent']:5.1f} % right   paper {paper['percent']:.1f}"
                + (f"   test perplexity {test['perplexity']:.1f}" if test else "")
            )
        print(f"{self.out / 'table3.md'} has the whole table")


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


def main(arguments: list[str] | None = None) -> int:
    """The command line: 0 if all went well, 2 for a user's mistake, 130 for Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else arguments
    _prepare_output()
    if not arguments:
        arguments = ["--help"]
    if arguments in (["--version"], ["-V"]):
        print(f"ncelm {__version__}")
        return 0
    with _ctrl_c_is_heard() as interrupted:
        try:
            return _answer(arguments)
        except Exception:
            if interrupted.is_set():  # the compiler was torn apart
                return _stopped()
            raise


def _answer(arguments: list[str]) -> int:
    """Run a command; whatever goes wrong is one line."""
    try:
        command = _parse(arguments)
        command.run()
        sys.stdout.flush()
    except NcelmError as error:
        return _fail(str(error))
    except KeyboardInterrupt as stop:
        return _stopped(str(stop))
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        _drop_output()
        return 0
    except MemoryError as error:
        return _fail(
            f"not enough memory ({str(error) or 'none is left'}): use fewer dimensions or a smaller vocabulary"
        )
    except OSError as error:  # such as a full disk behind standard output
        _drop_output()
        return _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    return 0


def _stopped(why: str = "") -> int:
    print(f"ncelm: {why or 'stopped by Ctrl-C'}", file=sys.stderr)
    return 130


@contextmanager
def _ctrl_c_is_heard() -> Iterator[threading.Event]:
    """Let no Ctrl-C be lost that arrives while compiled code calls back, as LLVM does: say it again a little later."""
    interrupted, former = threading.Event(), sys.unraisablehook

    def hook(lost: Any) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            interrupted.set()
            again = threading.Timer(0.1, _thread.interrupt_main)
            again.daemon = True
            again.start()
        else:
            former(lost)

    sys.unraisablehook = hook
    try:
        yield interrupted
    finally:
        sys.unraisablehook = former


def _prepare_output() -> None:
    """Nothing that is printed may end in a traceback: not for want of a stream, nor of a letter in its encoding."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """What is left in the buffer cannot be written: let Python not try again when it ends."""
    with suppress(OSError, ValueError):  # a stream that is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parse(arguments: list[str]) -> Any:
    """The command to run."""
    # a recipe named on the command line decides the defaults of `train`, and so the text of its help
    name = _recipe_named(arguments) if arguments[0] == "train" else "default"
    train_default = Train(tyro.MISSING, tyro.MISSING, recipe=name, config=recipe(name))
    command: Any = (
        Annotated[Prepare, subcommand("prepare")]
        | Annotated[Train, subcommand("train", default=train_default)]
        | Annotated[Evaluate, subcommand("evaluate")]
        | Annotated[Score, subcommand("score")]
        | Annotated[Complete, subcommand("complete")]
        | Annotated[Ngram, subcommand("ngram")]
        | Annotated[Lsa, subcommand("lsa")]
        | Annotated[Mix, subcommand("mix")]
        | Annotated[Blend, subcommand("blend")]
        | Annotated[Neighbors, subcommand("neighbors")]
        | Annotated[Export, subcommand("export")]
        | Annotated[Demo, subcommand("demo")]
        | Annotated[Reproduce, subcommand("reproduce")]
    )
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            return tyro.cli(
                command, prog="ncelm", args=arguments, description=_DESCRIPTION, config=(tyro.conf.FlagCreatePairsOff,)
            )
    except SystemExit as stop:
        if stop.code:
            raise NcelmError(_one_line(said.getvalue())) from None
        raise


def _one_line(box: str) -> str:
    """What a box of the parser says, without its frame: a line is enough."""
    lines = [line.strip("│╭╮╰╯─┌┐└┘ ") for line in box.splitlines()]
    # behind the first rule are suggestions, which may be many
    first = next((i for i, line in enumerate(box.splitlines()) if line.startswith("│ ──")), len(lines))
    said = " ".join(line for line in lines[1:first] if line)
    return f"{said or ' '.join(line for line in lines if line)}: see `ncelm --help`, or --help of the verb"


def _recipe_named(arguments: list[str]) -> str:
    name = "default"
    for this, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if this == "--recipe":
            name = following
        elif this.startswith("--recipe="):
            name = this.removeprefix("--recipe=")
    return name


_DESCRIPTION = "Neural language models that train in minutes on an ordinary CPU, by noise-contrastive estimation."


def _fail(message: str) -> int:
    print("ncelm: " + " ".join(message.split()), file=sys.stderr)
    return 2


def _print_json(answer: dict[str, Any]) -> None:
    print(json.dumps(answer, allow_nan=False))


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _on_terminal() -> bool:
    return sys.stderr.isatty()


def _bar(**options: Any) -> "tqdm[Any]":
    """A progress bar with rate and time left; nothing at all if nobody is watching."""
    return tqdm(disable=not _on_terminal(), dynamic_ncols=True, **options)


def _show(bar: "tqdm[Any]") -> Callable[[int, int | None], None]:
    """How a bar hears of progress."""

    def progress(done: int, total: int | None) -> None:
        bar.total = total
        bar.update(done - bar.n)

    return progress


def _show_training(bar: "tqdm[Any]", at: Progress, where: str = "") -> None:
    bar.total = at.epochs * at.words_per_epoch
    bar.update((at.epoch - 1) * at.words_per_epoch + at.words - bar.n)
    bar.set_description(f"{where}epoch {at.epoch}/{at.epochs} loss {at.loss:.3f}", refresh=False)
    if at.metrics and "valid_perplexity" in at.metrics:
        bar.set_postfix_str(
            f"perplexity {at.metrics['valid_perplexity']:.1f}, log Z {at.metrics['valid_log_z_mean']:+.2f}"
        )


def _ngrams(lm: LanguageModel) -> list[int]:
    """How many n-grams of each order a model has."""
    from ncelm.ngram import NGramModel

    return list(cast(NGramModel, lm.model).counts)


def _metrics(run_folder: Path) -> list[dict[str, Any]]:
    from ncelm.run import METRICS, Metrics

    return Metrics(run_folder / METRICS).read()
