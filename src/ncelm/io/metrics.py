"""The metrics of a run, metrics.jsonl: one JSON object per line."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncelm.errors import NcelmError
from ncelm.io.files import atomic_write, read_bytes


@dataclass
class Metrics:
    """A file of records. Records are only appended, except that a resumed run removes those it will write again."""

    path: Path

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self.path.stat().st_size if self.path.exists() else 0

    def truncate(self, size: int) -> None:
        """Remove all but the first `size` bytes."""
        if self.size < size:
            raise NcelmError(
                f"{self.path} is missing or truncated: restore it from a copy, or train with another --out"
            )
        if self.size > size:
            content = read_bytes(self.path)[:size]
            with atomic_write(self.path) as file:
                file.write(content)

    def append(self, record: dict[str, Any]) -> None:
        """Append a record."""
        content = read_bytes(self.path) if self.path.exists() else b""
        with atomic_write(self.path) as file:
            file.write(content + (json.dumps(record, allow_nan=False) + "\n").encode())

    def read(self) -> list[dict[str, Any]]:
        """Return all records."""
        if not self.path.exists():
            return []
        try:
            return [json.loads(line) for line in read_bytes(self.path).decode().splitlines()]
        except ValueError:
            raise NcelmError(f"{self.path} is damaged: every line of it should be JSON") from None
