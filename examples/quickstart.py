"""From a text file to sentence scores, perplexity and nearest neighbors: python examples/quickstart.py TEXT"""

import sys
import tempfile

import ncelm

if len(sys.argv) != 2:
    sys.exit("usage: python examples/quickstart.py TEXT")

with tempfile.TemporaryDirectory() as folder:
    # Split raw text into sentences and words. Words that occur once become <unk>.
    store = ncelm.prepare([sys.argv[1]], out=f"{folder}/store", lowercase=True, min_count=2, punkt="train")

    # Train a log-bilinear model by NCE: 25 noise samples per word, a context of 4 words, 100 dimensions.
    ncelm.train(store, f"{folder}/run", loss="nce", noise_samples=25, context=4, dim=100, epochs=5)

    lm = ncelm.load(f"{folder}/run")
    print("log P of a sentence:", lm.score("This is a sentence."))  # natural logarithm, with the end of the sentence
    for score in lm.full_scores("This is a sentence."):
        print(f"  {score.log_probability:8.3f}  {score.word}{'  (unknown)' if score.unknown else ''}")
    print("test perplexity:", lm.evaluate_split(store, "test").perplexity)  # exactly normalized
    print("nearest neighbors of 'is':", lm.neighbors("is", 5))
