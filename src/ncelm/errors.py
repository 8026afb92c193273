"""What ncelm says when something is wrong that a user can mend."""


class NcelmError(Exception):
    """A mistake or a broken input that the user can do something about.

    The message is one line: what is wrong, where, and what to do. The command line prints it and exits
    with code 2; in Python it is raised. Any other exception that reaches a user is a bug in ncelm.
    """


class DivergedError(NcelmError):
    """Training went astray. What happened is in the metrics; the best model before that, if any, is kept."""


class MissingExtraError(NcelmError, ImportError):
    """A package that only some of ncelm needs is not installed."""
