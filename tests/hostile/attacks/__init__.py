"""All families of attacks, by name."""

from tests.hostile.attacks import (
    archives,
    arpa,
    calls,
    checkpoints,
    concurrency,
    files,
    filtering,
    kills,
    limits,
    parts,
    texts,
    writes,
)
from tests.hostile.outcome import Family

MODULES = (files, checkpoints, archives, arpa, texts, filtering, parts, calls, writes, kills, limits, concurrency)
FAMILIES: dict[str, Family] = {family.name: family for module in MODULES for family in module.FAMILIES}
