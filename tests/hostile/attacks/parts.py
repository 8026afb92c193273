"""Damaged parts of a text that is prepared on several machines."""

import json
import shutil
from functools import cache
from random import Random

from tests.hostile.answers import Answer, answer_of, difference
from tests.hostile.corpus import Corpus, splits
from tests.hostile.mutations import damage, encode_json, mutate_json, with_checksum
from tests.hostile.outcome import HARMLESS, Family, Place, Violation, without_attack

from ncelm.text.prepare import prepare


@cache
def expected(corpus: Corpus) -> Answer:
    """Return the answer of the store of undamaged parts."""
    folder = corpus.folder.parent / "joined"
    if not (folder / "joined").exists():
        shutil.copytree(corpus.folder / "parts", folder)
        with without_attack():
            prepare(**splits(corpus.folder), out=folder / "joined", parts=2, workers=1)
    return answer_of(folder / "joined")


def damaged_part(random: Random, place: Place) -> str:
    """Join parts of which one file is damaged or crafted."""
    reference = expected(place.corpus)
    folder = place.folder / "parts"
    shutil.copytree(place.corpus.folder / "parts", folder)
    path = random.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    content, crafted = path.read_bytes(), False
    if path.suffix == ".json" and random.random() < 0.8:
        document = mutate_json(random, json.loads(content))
        crafted = random.random() < 0.5
        path.write_bytes(encode_json(with_checksum(document) if crafted else document))
    elif random.random() < 0.1:
        path.unlink()
    else:
        path.write_bytes(damage(random, content))
    prepare(**splits(place.corpus.folder), out=folder / "joined", parts=2, workers=1)
    answer = answer_of(folder / "joined")
    if not crafted and (changed := difference(answer, reference)):
        raise Violation(f"another store from a damaged {path.name}: {changed}")
    return HARMLESS


FAMILIES = [Family("parts", damaged_part, share=1)]
