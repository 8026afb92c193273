"""Plots of results. Matplotlib is an optional dependency: without it nothing is drawn."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ncelm.io.files import atomic_write

Curve = tuple[Sequence[float], Sequence[float]]  # x, y


def draw(path: Path, paint: Callable[[Any], None], size: tuple[float, float] = (7.0, 4.5)) -> bool:
    """Call `paint` with matplotlib axes and save the figure; return False if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    paint(axes)
    axes.grid(alpha=0.3, which="both")
    with atomic_write(path) as file:
        figure.savefig(file, dpi=120, format="png")
    return True


def perplexity_against_time(path: Path, curves: Mapping[str, Curve], split: str) -> bool:
    """Plot perplexity against training time on a logarithmic scale: one line per run, one dot per epoch."""

    def paint(axes: Any) -> None:
        for number, (name, (seconds, perplexity)) in enumerate(curves.items()):
            axes.plot(seconds, perplexity, marker=".", label=name, linestyle=("-", "--", ":")[number // 10 % 3])
        axes.set(xscale="log", xlabel="seconds of training", ylabel=f"{split} perplexity")
        lowest = min(min(perplexity) for _, perplexity in curves.values())
        axes.set_ylim(lowest * 0.97, lowest * 2.2)  # hides the first epochs and diverged runs
        if many:
            axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
        else:
            axes.legend()

    many = len(curves) > 6
    return draw(path, paint, (11.0, 4.5) if many else (7.0, 4.5))


def perplexity_against_samples(path: Path, curves: Mapping[str, Curve], published: Mapping[str, Curve]) -> bool:
    """Plot perplexity against the number of noise samples: lines for measured, crosses for published results."""

    def paint(axes: Any) -> None:
        for name, (k, perplexity) in curves.items():
            (line,) = axes.plot(k, perplexity, marker="o", label=name)
            if name in published:
                axes.plot(*published[name], "x--", color=line.get_color(), alpha=0.6, label=f"{name}, published")
        axes.set(xscale="log", xlabel="noise samples per word, k", ylabel="test perplexity")
        axes.legend()

    return draw(path, paint)


def curves_by_epoch(path: Path, curves: Mapping[str, Curve], split: str) -> bool:
    """Plot perplexity after each epoch."""

    def paint(axes: Any) -> None:
        for name, (epochs, perplexity) in curves.items():
            axes.plot(epochs, perplexity, marker=".", label=name)
        axes.set(xlabel="epoch", ylabel=f"{split} perplexity")
        axes.legend()

    return draw(path, paint)


def effective_samples(path: Path, curves: Mapping[str, Curve], diverged: Mapping[str, float]) -> bool:
    """Plot the effective sample size at each step, with a cross where a run diverged."""

    def paint(axes: Any) -> None:
        for name, (steps, sizes) in curves.items():
            (line,) = axes.plot(steps, sizes, label=name)
            if name in diverged:
                axes.plot(diverged[name], sizes[-1], "x", color=line.get_color(), markersize=9)
        axes.set(xlabel="step", ylabel="effective sample size", yscale="log")
        axes.legend(fontsize="small", title="× diverged")

    return draw(path, paint)


def accuracy_against_perplexity(path: Path, points: Mapping[str, tuple[float, float]]) -> bool:
    """Plot accuracy against perplexity: one labeled dot per model."""

    def paint(axes: Any) -> None:
        # labels alternate between the right and the left side so that neighboring labels do not overlap
        for number, (name, (perplexity, percent)) in enumerate(sorted(points.items(), key=lambda point: point[1])):
            right = number % 2 == 0
            axes.plot([perplexity], [percent], "o", color="C1" if "gram" in name else "C0")
            axes.annotate(
                name,
                (perplexity, percent),
                textcoords="offset points",
                xytext=(7 if right else -7, 0),
                ha="left" if right else "right",
                va="center",
                fontsize="small",
            )
        axes.set(xlabel="test perplexity", ylabel="percent correct")
        axes.margins(x=0.25)

    return draw(path, paint)
