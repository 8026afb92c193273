"""Text normalisation as in CCNet (Wenzek et al., 2020): what its language models are trained on.

Lower case; digits become 0; accents are removed; punctuation of other scripts and typographic punctuation becomes
ASCII; characters that cannot be printed are removed. Written from this description.
"""

import unicodedata
from functools import lru_cache
from typing import Literal

Normalization = Literal["none", "ccnet"]
_DASHES = {"–": "-", "—": " - ", "―": " - ", "‒": "-", "‐": "-", "‑": "-", "−": "-", "━": "-", "►": "-"}
_QUOTES = dict.fromkeys("„”“«»‟″〝〞「」『』《》", '"') | dict.fromkeys("´’‘‚‛′`", "'")
_OTHERS = {"、": ",", "。": ".", "…": "...", "‥": "..", "∶": ":", "〈": "<", "〉": ">", "【": "[", "】": "]", "〔": "(",
           "〕": ")", "・": " ", "·": " ", "‹": "'", "›": "'", "．": ". "}  # fmt: skip
_TABLE = str.maketrans(_DASHES | _QUOTES | _OTHERS)
_DIGITS = str.maketrans(dict.fromkeys("123456789", "0"))
_REMOVED = ("Cc", "Cf", "Co", "Cs")  # control and format characters, private use, surrogates


def ccnet_normalized(text: str) -> str:
    """Return a text as CCNet normalises it.

    >>> ccnet_normalized("Ça coûte 25 €… «\u202fÉtonnant\u202f» — oui！")
    'ca coute 00 €... " etonnant "  -  oui!'
    """
    text = text.lower()
    if text.isascii():
        return text.translate(_DIGITS) if text.isprintable() else "".join(map(_character, text))
    text = text.translate(_TABLE)
    decomposed = unicodedata.normalize("NFD", text)
    kept = "".join(map(_character, decomposed))
    return unicodedata.normalize("NFC", kept)


@lru_cache(1 << 16)
def _character(character: str) -> str:
    """Return what one character, decomposed, becomes."""
    if character.isspace():
        return " "
    category = unicodedata.category(character)
    if category == "Mn" or category in _REMOVED:
        return ""
    if category == "Nd":
        return "0"
    return chr(ord(character) - 0xFEE0) if "\uff01" <= character <= "\uff5e" else character  # full width
