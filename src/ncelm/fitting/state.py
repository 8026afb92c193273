"""fit.json: the stages of `fit` that are finished, its choices and its results."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ncelm import __version__
from ncelm.errors import NcelmError
from ncelm.io.files import is_finite_number, read_json, write_json
from ncelm.io.run import FIT

FORMAT, VERSION = "ncelm-fit", 1
STAGES = ("prepare", "ngram", "train", "mix", "evaluate", "report")


@dataclass
class State:
    """The content of fit.json."""

    options: dict[str, Any]  # that were given, as JSON values
    explanation: dict[str, str] = field(default_factory=dict)  # topic: one line
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)  # stage: "seconds" and "finished"
    compile_seconds: float = 0.0
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The time of all stages, without compilation."""
        return float(sum(step["seconds"] for step in self.steps.values()))

    def is_finished(self, stage: str) -> bool:
        """Return whether a stage is finished."""
        return bool(self.steps.get(stage, {}).get("finished", False))

    def add(self, stage: str, seconds: float, finished: bool) -> None:
        """Add the time of a stage, or of a part of it if it was interrupted."""
        former = self.steps.get(stage, {}).get("seconds", 0.0)
        self.steps[stage] = {"seconds": former + seconds, "finished": finished}

    def write(self, out: Path) -> None:
        """Write fit.json."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "ncelm": __version__,
            "finished": self.is_finished(STAGES[-1]),
            "options": self.options,
            "explanation": [f"{topic}: {line}" for topic, line in self.explanation.items()],
            "steps": self.steps,
            "seconds": self.seconds,
            "compile_seconds": self.compile_seconds,
            "result": self.result,
        }
        write_json(out / FIT, content)

    @classmethod
    def read(cls, out: Path) -> "State":
        """Return the content of fit.json, validated."""
        content = read_json(out / FIT, "model of `ncelm fit`", FORMAT, VERSION)
        names = ("options", "explanation", "steps", "compile_seconds", "result")
        parts: list[Any] = [content.get(name) for name in names]
        options, explanation, steps, compile_seconds, result = parts
        if not (
            isinstance(options, dict)
            and isinstance(explanation, list)
            and all(isinstance(line, str) and ": " in line for line in explanation)
            and isinstance(steps, dict)
            and all(name in STAGES and _is_step(step) for name, step in steps.items())
            and _is_time(compile_seconds)
            and _is_result(result)
        ):
            raise NcelmError(f"{out / FIT} is damaged: restore it from a copy, or fit the model again")
        topics = dict(line.split(": ", 1) for line in explanation)
        return cls(options, topics, steps, float(compile_seconds), result)


def _is_time(value: Any) -> bool:
    return is_finite_number(value) and value >= 0


def _is_step(step: Any) -> bool:
    return isinstance(step, dict) and _is_time(step.get("seconds")) and type(step.get("finished")) is bool


def _is_result(result: Any) -> bool:
    """Return whether a value has the fields of a result that `fit` and the command line read, of the right types."""
    if not isinstance(result, dict):
        return False
    perplexity = result.get("perplexity", {})
    tables = [result.get("weights", {}), result.get("scored_words", {})]
    tables += perplexity.values() if isinstance(perplexity, dict) else [None]
    return all(isinstance(table, dict) and all(map(is_finite_number, table.values())) for table in tables)
