"""The metrics of a run, metrics.jsonl: one JSON object per line."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncelm.errors import NcelmError
from ncelm.io.files import atomic_write, parse_json, read_bytes


@dataclass
class Metrics:
    """A file of records. Records are only appended, except that a resumed run removes those it will write again."""

    path: Path

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self.path.stat().st_size if self.path.exists() else 0

    def truncate(self, size: int, sha256: str = "") -> None:
        """Remove all but the first `size` bytes, whose digest must be `sha256` unless that is empty."""
        if self.size < size:
            raise NcelmError(
                f"{self.path} is missing or truncated: restore it from a copy, or train with another `out`"
            )
        content = read_bytes(self.path)[:size] if size else b""
        if sha256 and hashlib.sha256(content).hexdigest() != sha256:
            raise NcelmError(f"{self.path} is damaged: restore it from a copy, or train with another `out`")
        if self.size > size:
            with atomic_write(self.path) as file:
                file.write(content)

    def append(self, record: dict[str, Any]) -> None:
        """Append a record. Its numbers must be finite."""
        content = read_bytes(self.path) if self.path.exists() else b""
        with atomic_write(self.path) as file:
            file.write(content + (json.dumps(record, allow_nan=False) + "\n").encode())

    def read(self) -> list[dict[str, Any]]:
        """Return all records."""
        if not self.path.exists():
            return []
        damaged = NcelmError(f"{self.path} is damaged: every line of it should be a JSON object")
        try:
            records = [parse_json(line) for line in read_bytes(self.path).decode().splitlines()]
        except ValueError:
            raise damaged from None
        if not all(isinstance(record, dict) for record in records):
            raise damaged
        return records

    def digest(self) -> str:
        """Return the SHA-256 digest of the file; of no bytes if it does not exist."""
        return hashlib.sha256(read_bytes(self.path) if self.path.exists() else b"").hexdigest()
