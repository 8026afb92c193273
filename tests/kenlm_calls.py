"""One program that calls everything of KenLM's Python module: it runs with `kenlm` and with `ncelm.kenlm`."""

import copy
import math
import pickle
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

WORDS = ["<s>", "</s>", "<unk>", "", "not-a-word", "naïve", "a b", "x" * 300]


def all_calls(kenlm: ModuleType, path: str, lines: Sequence[str]) -> Iterator[tuple[str, int, Any]]:
    """Yield the name of each result, the number of words it is a sum over, and the result."""
    config = kenlm.Config()
    config.show_progress = False
    config.load_method = kenlm.LoadMethod.LAZY
    config.arpa_complain = kenlm.ARPALoadComplain.NONE
    model = kenlm.Model(path, config)
    yield "order", 1, model.order
    yield "path", 1, model.path
    vocabulary = sorted({word for line in lines for word in line.split()})
    for word in [*vocabulary, *WORDS]:
        yield f"{word!r} in model", 1, word in model
        yield f"{word!r} in model, bytes", 1, word.encode() in model
    unusual = [
        "",
        " ",
        "  two  blanks\tand a tab\r\n",
        "a </s> b",
        "<unk> <s>",
        "naïve\xa0words \u3000 ünïcode",
        "x" * 300,
    ]
    for number, line in enumerate([*lines, *unusual]):
        words = len(line.split()) + 1
        for bos in (True, False):
            for eos in (True, False):
                yield f"score({number}, {bos}, {eos})", words, model.score(line, bos, eos)
                for i, word in enumerate(model.full_scores(line, bos=bos, eos=eos)):
                    yield f"full_scores({number}, {bos}, {eos})[{i}]", 1, word
        yield f"score({number}), bytes", words, model.score(line.encode())
        yield f"log perplexity({number})", 1, math.log10(model.perplexity(line))
        yield from incremental(kenlm, model, line, number)
    words = len(lines[0].split()) + 1
    yield "pickled", words, pickle.loads(pickle.dumps(model)).score(lines[0])
    yield "LanguageModel", words, kenlm.LanguageModel(path, config).score(lines[0])


def incremental(kenlm: ModuleType, model: Any, line: str, number: int) -> Iterator[tuple[str, int, Any]]:
    """Yield the results of all calls with states, for the words of a line."""
    for start in ("BeginSentenceWrite", "NullContextWrite"):
        state, following, again = kenlm.State(), kenlm.State(), kenlm.State()
        getattr(model, start)(state)
        getattr(model, start)(again)
        yield f"{start}: equal states", 1, (state == again, state != again, hash(state) == hash(again))
        seen = [copy.copy(state)]
        for word in [*line.split(), "</s>"]:
            yield f"{start}, line {number}: BaseScore of {word!r}", 1, model.BaseScore(state, word, following)
            full = model.BaseFullScore(state, word, again)
            yield f"{start}, line {number}: BaseFullScore of {word!r}", 1, (full.log_prob, full.ngram_length, full.oov)
            yield "equal states", 1, (following == again, following <= again, following >= again, following < again)
            seen.append(copy.copy(following))
            state, following = following, state
        # which of the states are equal, and whether equal ones have equal hashes
        seen = seen[:40]
        yield f"{start}, line {number}: states", 1, [[a == b for b in seen] for a in seen]
        yield "hashes", 1, all(hash(a) == hash(b) for a in seen for b in seen if a == b)
