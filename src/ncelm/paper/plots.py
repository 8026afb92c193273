"""Pictures of results, by matplotlib, which is an extra: where it is not installed nothing is drawn."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ncelm.io.files import write_whole

Curve = tuple[Sequence[float], Sequence[float]]  # x, y


def draw(path: Path, paint: Callable[[Any], None], size: tuple[float, float] = (7.0, 4.5)) -> bool:
    """Let `paint` draw on matplotlib axes and write them to `path`; False if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    paint(axes)
    axes.grid(alpha=0.3, which="both")
    with write_whole(path) as file:
        figure.savefig(file, dpi=120, format="png")
    return True


def perplexity_against_time(path: Path, curves: Mapping[str, Curve], split: str) -> bool:
    """A line for each run, a dot for each epoch, seconds on a logarithmic scale."""

    def paint(axes: Any) -> None:
        for number, (name, (seconds, perplexity)) in enumerate(curves.items()):
            axes.plot(seconds, perplexity, marker=".", label=name, linestyle=("-", "--", ":")[number // 10 % 3])
        axes.set(xscale="log", xlabel="seconds of training", ylabel=f"{split} perplexity")
        lowest = min(min(perplexity) for _, perplexity in curves.values())
        axes.set_ylim(lowest * 0.97, lowest * 2.2)  # the first epochs and runs that diverge would hide the others
        if many:
            axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
        else:
            axes.legend()

    many = len(curves) > 6
    return draw(path, paint, (11.0, 4.5) if many else (7.0, 4.5))


def perplexity_against_samples(path: Path, curves: Mapping[str, Curve], published: Mapping[str, Curve]) -> bool:
    """Perplexity by number of noise words: ours as lines, published figures as crosses of the same colour."""

    def paint(axes: Any) -> None:
        for name, (k, perplexity) in curves.items():
            (line,) = axes.plot(k, perplexity, marker="o", label=name)
            if name in published:
                axes.plot(*published[name], "x--", color=line.get_color(), alpha=0.6, label=f"{name}, published")
        axes.set(xscale="log", xlabel="noise words for each word, k", ylabel="test perplexity")
        axes.legend()

    return draw(path, paint)


def curves_by_epoch(path: Path, curves: Mapping[str, Curve], split: str) -> bool:
    """Perplexity after each epoch."""

    def paint(axes: Any) -> None:
        for name, (epochs, perplexity) in curves.items():
            axes.plot(epochs, perplexity, marker=".", label=name)
        axes.set(xlabel="epoch", ylabel=f"{split} perplexity")
        axes.legend()

    return draw(path, paint)


def effective_samples(path: Path, curves: Mapping[str, Curve], diverged: Mapping[str, float]) -> bool:
    """Effective sample size step by step; a cross where a run diverged."""

    def paint(axes: Any) -> None:
        for name, (steps, sizes) in curves.items():
            (line,) = axes.plot(steps, sizes, label=name)
            if name in diverged:
                axes.plot(diverged[name], sizes[-1], "x", color=line.get_color(), markersize=9)
        axes.set(xlabel="step", ylabel="effective sample size", yscale="log")
        axes.legend(fontsize="small", title="× diverged")

    return draw(path, paint)


def accuracy_against_perplexity(path: Path, points: Mapping[str, tuple[float, float]]) -> bool:
    """A dot with its name for each model: perplexity to the right, percent correct upwards."""

    def paint(axes: Any) -> None:
        # names stand to the right and to the left by turns, so that those of neighbours do not meet
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
