"""Line charts as SVG, without a script: they print, and a screen reader reads their title and description."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ncelm.report.markup import Markup, element

WIDTH, HEIGHT = 480, 280
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 14, 44
COLORS = 8  # of series, in the style sheet
LOG_RATIO = 8.0  # a wider range of values has a logarithmic axis
MAX_MARKERS = 40  # with more points, only the line is drawn

Place = Callable[[float], float]  # from a value to a coordinate


@dataclass(frozen=True)
class Series:
    """A line: points (x, y) in the order of x."""

    name: str
    points: list[tuple[float, float]]
    color: int = 0
    marked: float | None = None  # the x of a point to emphasise, such as the best epoch


def line_chart(
    title: str,
    x_label: str,
    y_label: str,
    series: Sequence[Series],
    whole_x: bool = False,
    from_zero: bool = False,
) -> Markup | None:
    """Return a figure; None if no line has two points. The axes show whole x only, and y from 0, if that is set."""
    drawn = [each for each in series if each.points]
    if not any(len(each.points) > 1 for each in drawn):
        return None
    xs = [x for each in drawn for x, _ in each.points]
    ys = [y for each in drawn for _, y in each.points]
    logarithmic = not from_zero and min(ys) > 0 and max(ys) / min(ys) > LOG_RATIO
    x_ticks = ticks(min(xs), max(xs), 6, whole_x)
    lowest = 0.0 if from_zero else min(ys)
    y_ticks = log_ticks(lowest, max(ys)) if logarithmic else ticks(lowest, max(ys), 5)
    x_low, x_high = min(*xs, *x_ticks), max(*xs, *x_ticks)
    y_low, y_high = min(*ys, *y_ticks), max(*ys, *y_ticks)

    def across(x: float) -> float:
        return LEFT + (x - x_low) / ((x_high - x_low) or 1.0) * (WIDTH - LEFT - RIGHT)

    def up(y: float) -> float:
        low, high, value = (math.log(y_low), math.log(y_high), math.log(y)) if logarithmic else (y_low, y_high, y)
        return HEIGHT - BOTTOM - (value - low) / ((high - low) or 1.0) * (HEIGHT - TOP - BOTTOM)

    parts: list[Markup] = []
    for y in y_ticks:
        parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=_px(up(y)), y2=_px(up(y)), class_="grid"))
        parts.append(element("text", compact(y), x=LEFT - 8, y=_px(up(y) + 4), class_="tick end"))
    for x in x_ticks:
        parts.append(element("text", compact(x), x=_px(across(x)), y=HEIGHT - BOTTOM + 18, class_="tick middle"))
    parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM, class_="axis"))
    parts.append(element("text", x_label, x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 6, class_="label middle"))
    for each in drawn:
        parts.append(_line(each, across, up, x_label, y_label))
    scale = " (logarithmic scale)" if logarithmic else ""
    described = f"{title}. {_description(drawn, x_label, y_label)}"
    svg = element("svg", *parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=described)
    return element("figure", element("figcaption", title + scale), svg, class_="chart")


def _line(series: Series, across: Place, up: Place, x_label: str, y_label: str) -> Markup:
    places = [(_px(across(x)), _px(up(y))) for x, y in series.points]
    parts = [element("polyline", points=" ".join(f"{x},{y}" for x, y in places), class_="line")]
    for (x, y), (left, top) in zip(series.points, places, strict=True):
        marked = x == series.marked
        if marked or len(places) <= MAX_MARKERS:
            tip = f"{series.name}, {x_label} {number(x)}: {y_label} {number(y)}{' (best)' if marked else ''}"
            radius = 5 if marked else 3
            parts.append(element("circle", element("title", tip), cx=left, cy=top, r=radius,
                                 class_="best" if marked else "dot"))  # fmt: skip
    return element("g", *parts, class_=f"series color{series.color % COLORS}")


def _description(series: Sequence[Series], x_label: str, y_label: str) -> str:
    """Return the chart in words: first, last and lowest value of each line."""
    sentences = []
    for each in series:
        (first_x, first_y), (last_x, last_y) = each.points[0], each.points[-1]
        lowest_x, lowest_y = min(each.points, key=lambda point: point[1])
        sentences.append(
            f"{each.name}: {y_label} {number(first_y)} at {x_label} {number(first_x)}, {number(last_y)} at {x_label} "
            f"{number(last_x)}; lowest {number(lowest_y)} at {x_label} {number(lowest_x)}."
        )
    return " ".join(sentences)


def legend(series: Sequence[Series]) -> Markup:
    """Return the names of lines with their colors."""
    return element(
        "ul",
        *(
            element(
                "li", element("span", "", class_=f"swatch color{each.color % COLORS}", aria_hidden="true"), each.name
            )
            for each in series
        ),
        class_="legend",
    )


def ticks(low: float, high: float, most: int, whole: bool = False) -> list[float]:
    """Return round numbers that cover a range, about `most` of them.

    >>> ticks(1, 6, 6, whole=True), ticks(71.7, 104.2, 5)
    ([1, 2, 3, 4, 5, 6], [70.0, 80.0, 90.0, 100.0, 110.0])
    """
    span = high - low or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(max(span / most, 1e-300)))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if span / (power * factor) <= most)
    if whole:
        step = max(round(step), 1)
        first, last = math.ceil(low / step), math.floor(high / step)
    else:
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    values = (i * step for i in range(first, max(last, first) + 1))
    return [value if whole else float(f"{value:.12g}") for value in values]  # without rounding errors


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten in a range, or powers of ten only if there are many.

    >>> log_ticks(70, 900)
    [50.0, 100.0, 200.0, 500.0, 1000.0]
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    stride = 1 + (last - first) // 8
    powers = range(first, last + stride, stride)
    factors = (1, 2, 5) if len(powers) < 5 else (1,)
    found = [factor * 10.0**power for power in powers for factor in factors]
    below, above = [t for t in found if t <= low], [t for t in found if t >= high]
    return [t for t in found if (not below or t >= below[-1]) and (not above or t <= above[0])]


def number(value: float) -> str:
    """Return a number for people: few digits, thousands separated.

    >>> [number(v) for v in (0, 3, 71.73, 1234567.8, 0.00031, 2.5e-9)]
    ['0', '3', '71.7', '1,234,568', '0.00031', '2.5e-09']
    """
    if value < 0:
        return f"−{number(-value)}"
    size = abs(value)
    if size >= 1000 or value == int(value):
        return f"{value:,.0f}" if size < 1e15 else f"{value:.3g}"
    return f"{value:.3g}" if size < 100 else f"{value:,.1f}"


def compact(value: float) -> str:
    """Return a number for the tick of an axis.

    >>> [compact(v) for v in (9_500, 80_000, 1_500_000, -0.05)]
    ['9,500', '80 k', '1.5 M', '−0.05']
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{number(value / (1e3 if unit == 'k' else size))} {unit}"
    return number(value)


def _px(value: float) -> str:
    return f"{value:.1f}"
