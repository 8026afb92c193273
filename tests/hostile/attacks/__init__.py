"""All families of attacks, by name."""

from tests.hostile.attacks import archives, arpa, calls, checkpoints, files, kills, texts
from tests.hostile.outcome import Family

MODULES = (files, checkpoints, archives, arpa, texts, calls, kills)
FAMILIES: dict[str, Family] = {family.name: family for module in MODULES for family in module.FAMILIES}
