"""Charts: ticks, numbers, and lines."""

import math

from hypothesis import example, given
from hypothesis import strategies as st

from ncelm.report.charts import HEIGHT, WIDTH, Series, line_chart, log_ticks, ticks

numbers = st.floats(-1e30, 1e30)
positive = st.floats(1e-300, 1e30)


@given(numbers, numbers, st.booleans())
@example(0.0, 7.155939064391591e-14, False)
def test_ticks_are_few_and_ascending(a, b, whole):
    low, high = min(a, b), max(a, b)
    found = ticks(low, high, 6, whole)
    assert 1 <= len(found) <= 9
    assert found == sorted(found)
    if not whole:
        slack = 1e-6 * max(high - low, abs(high), abs(low), 1e-9)
        assert found[0] <= low + slack
        assert found[-1] >= high - slack


@given(positive, positive)
def test_log_ticks_cover_the_range(a, b):
    low, high = min(a, b), max(a, b)
    found = log_ticks(low, high)
    assert 1 <= len(found) <= 14
    assert found[0] <= low * 1.001
    assert found[-1] >= high * 0.999


@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=5))
def test_points_are_inside(points):
    chart = line_chart("title", "x", "y", [Series("a", sorted(points))])
    for pair in chart.split('points="')[1].split('"')[0].split():
        x, y = map(float, pair.split(","))
        assert -1 <= x <= WIDTH + 1
        assert -1 <= y <= HEIGHT + 1
        assert math.isfinite(x + y)


def test_one_point_is_no_chart():
    assert line_chart("title", "x", "y", [Series("a", [(1, 2)])]) is None
    assert line_chart("title", "x", "y", [Series("a", [])]) is None


def test_a_chart():
    series = [Series("a<b", [(1, 900.0), (2, 30.0), (3, 40.0)], marked=2), Series("b", [(1, 50.0)], color=1)]
    chart = line_chart("Perplexity", "epoch", "perplexity", series, whole_x=True)
    assert "Perplexity (logarithmic scale)" in chart
    assert "a&lt;b, epoch 2: perplexity 30 (best)" in chart
    assert "a&lt;b: perplexity 900 at epoch 1, 40 at epoch 3; lowest 30 at epoch 2." in chart
    assert chart.count("<circle") == 4
    assert chart.count('class="best"') == 1
    assert "<b" not in chart


def test_long_lines_have_no_dots():
    chart = line_chart("title", "x", "y", [Series("a", [(i, i) for i in range(100)], marked=50)])
    assert chart.count("<circle") == 1


def test_throughput_starts_at_zero():
    chart = line_chart("title", "x", "words/s", [Series("a", [(1, 90_000), (2, 100_000)])], from_zero=True)
    assert ">0</text>" in chart
    assert ">100 k</text>" in chart
