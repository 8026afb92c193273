"""The README's example: from a text file to scores, vectors and a perplexity.  python quickstart.py TEXT"""

import sys
import tempfile

import ncelm

if len(sys.argv) != 2:
    sys.exit("usage: python quickstart.py TEXT")
with tempfile.TemporaryDirectory() as folder:
    store = ncelm.prepare([sys.argv[1]], out=f"{folder}/store", lowercase=True, min_count=2, punkt="train")
    ncelm.train(store, f"{folder}/run", context=4, dim=100)

    lm = ncelm.load(f"{folder}/run")
    print(lm.score("This is a sentence."))  # log P, natural logarithm, the end of the sentence included
    for word in lm.full_scores("This is a sentence."):
        print(word.word, word.log_probability, word.unknown)
    print(lm.evaluate_split(store, "test").perplexity)  # normalised, <unk> and </s> counted
    print(lm.neighbors("is", 5))
