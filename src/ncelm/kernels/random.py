"""Counter-based random numbers: a stream for each (seed, step, example), and a permutation without memory."""

import numpy as np

from ncelm.kernels.compile import inline, kernel


@inline
def mix(x):
    """The output function of SplitMix64 (Steele, Lea & Flood 2014): a hash of 64 bits."""
    x = np.uint64(x)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@inline
def stream_key(seed, step, example):
    """The key of the random stream of one example of one update."""
    key = mix(np.uint64(seed) + GOLDEN)
    key = mix(key ^ (np.uint64(step) + GOLDEN))
    return mix(key ^ (np.uint64(example) + GOLDEN))


@inline
def draw(key, counter):
    """The counter-th 64 random bits of a stream."""
    return mix(key + (np.uint64(counter) + np.uint64(1)) * GOLDEN)


@inline
def permutation_bits(size):
    """Half of the smallest even number of bits that can represent `size` values."""
    half = np.uint64(1)
    while (np.uint64(1) << (half + half)) < np.uint64(size):
        half += np.uint64(1)
    return half


@inline
def permuted(index, size, key, half):
    """The image of `index` under a pseudo-random permutation of range(size): a Feistel network with cycle walking.

    It needs no memory: a corpus of any size is visited in random order, and training can resume at any step.
    """
    mask = (np.uint64(1) << half) - np.uint64(1)
    x = np.uint64(index)
    while True:
        left, right = x >> half, x & mask
        for turn in range(4):
            left, right = right, left ^ (mix(right + key + np.uint64(turn) * GOLDEN) & mask)
        x = (left << half) | right
        if x < np.uint64(size):
            return np.int64(x)


@kernel
def step_key(seed, step, example):
    """`stream_key` for Python."""
    return stream_key(seed, step, example)
