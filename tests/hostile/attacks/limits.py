"""Commands with limited resources: open files, size of files, address space."""

import resource
import sys
from random import Random

from tests.hostile.commands import commands, finish, start, undisturbed
from tests.hostile.outcome import HARMLESS, REJECTED, Family, Place, Violation
from tests.hostile.tools import check_command, check_content, check_no_partials

# The limit is set after the libraries have been loaded: a library that cannot be loaded is no business of ncelm
LIMITED = """
import resource, sys
import numpy, scipy.linalg, scipy.sparse.linalg, numba
import ncelm.kernels.compile
from ncelm.cli.main import main
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + int(sys.argv[1]), resource.RLIM_INFINITY))
sys.exit(main(sys.argv[2:]))
"""
LEAST_FILES = 16  # Python itself needs some


def limited_command(random: Random, place: Place) -> str:
    """Run a command with a limit: it succeeds, or ends with one line and nothing half written."""
    command = random.choice(commands(place.corpus))
    reference = undisturbed(place.corpus, command)
    words = command.line(place.corpus, place.folder)
    kind = random.choice(("files", "file size", "memory"))
    options, program = {}, None
    if kind == "files":
        value = random.choice((LEAST_FILES, 20, 24, 32, 64, 128))
        options = {"limits": {resource.RLIMIT_NOFILE: value}}
    elif kind == "file size":
        value = random.choice((0, 1, 100, 1000, 4096, 10_000, 100_000, random.randrange(1_000_000)))
        options = {"limits": {resource.RLIMIT_FSIZE: value}}
    else:
        value = random.choice((1 << 20, 8 << 20, 32 << 20, 64 << 20, 128 << 20, 512 << 20))
        program = [sys.executable, "-c", LIMITED, str(value)]
    what = f"{command.name}, {kind} limited to {value}"
    code, _, errors = finish(start(words, program=program, **options), what)
    try:
        outcome = check_command(code, errors)
    except Violation as violation:
        raise Violation(f"{what}: {violation}") from None
    check_no_partials(place.folder, what)
    out = place.folder / command.output
    if outcome == HARMLESS:
        check_content(out, reference.content, what)
        return HARMLESS
    if out.exists() and not command.resumes:
        raise Violation(f"{what}: an error, and the output exists")
    return REJECTED


FAMILIES = [Family("limits", limited_command, share=4, timeout=300, processes=True)]
