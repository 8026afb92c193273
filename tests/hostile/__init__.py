"""Attacks on ncelm: damaged and crafted files, killed processes, full disks, and concurrent processes.

    python -m tests.hostile --minutes 30 --seed 0 --report docs/results/attack.md
    python -m tests.hostile --seed 0 --only arrays:123      one attempt again
    python -m tests.hostile --soak --minutes 120            look for leaks in one long-lived process

An attempt has one of three outcomes. It is "rejected" if ncelm refuses with one line. It is "harmless" if the answer is
that of the undamaged files. Anything else is a "violation": another exception, another answer, a crash, a hang,
files that are left behind, or memory that grows without bounds.
"""
