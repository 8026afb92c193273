"""Single-precision exp and log: the documented errors; counter-based random numbers."""

import numpy as np
import pytest

from ncelm.kernels import math32, random
from ncelm.kernels.compile import callable_from_python

exp32, log32, dot = map(callable_from_python, (math32.exp32, math32.log32, math32.dot))


def test_exp32():
    for x in np.linspace(-30.0, 30.0, 2001).astype(np.float32):
        assert exp32(x) == pytest.approx(np.exp(np.float64(x)), rel=2e-6)
    assert exp32(np.float32(0.0)) == 1.0


@pytest.mark.parametrize("x", [-1e30, -1e4, -88.0, 88.0, 1e4, 1e30])
def test_exp32_of_extreme_numbers_is_finite_and_so_is_its_inverse(x):
    """It is that of −87 or 87. A denormal number would be slow."""
    result = np.float32(exp32(np.float32(x)))
    least = np.finfo(np.float32).tiny
    assert least <= result < np.inf
    assert least <= np.float32(1.0) / result < np.inf
    assert np.log(np.float64(result)) == pytest.approx(np.sign(x) * 87.0, rel=1e-6)


def test_log32():
    for x in np.exp(np.linspace(np.log(1e-9), 0.0, 2001)).astype(np.float32):
        assert log32(x) == pytest.approx(np.log(np.float64(x)), abs=2e-6)
    for x in np.exp(np.linspace(0.0, 20.0, 500)).astype(np.float32):  # sums of exponentials
        assert log32(x) == pytest.approx(np.log(np.float64(x)), rel=1e-6, abs=2e-6)
    assert log32(np.float32(1.0)) == 0.0


@pytest.mark.parametrize("n", [0, 1, 7, 100])
def test_dot(n):
    a, b = np.random.default_rng(n).normal(size=(2, n)).astype(np.float32)
    assert dot(a, b) == pytest.approx(a.astype(np.float64) @ b, abs=1e-5)


def test_splitmix64_has_its_published_values():
    """The first outputs of SplitMix64 with seed 1234567: Rosetta Code, "Pseudo-random numbers/Splitmix64"."""
    draw = callable_from_python(random.draw)
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [int(draw(np.uint64(1234567), i)) for i in range(4)] == published


def test_random_streams_differ():
    keys = {
        int(random.step_key(seed, step, example))
        for seed in range(4)
        for step in (0, 1, 2**33)
        for example in (-2, -1, 0, 1, 2)
    }
    assert len(keys) == 4 * 3 * 5
