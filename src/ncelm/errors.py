"""The exceptions that ncelm raises for errors a user can fix."""


class NcelmError(Exception):
    """An invalid argument or input.

    The message is one line that states the problem and the remedy. The command line prints it and exits with code 2.
    Any other exception that reaches a user is a bug in ncelm.
    """


class DivergedError(NcelmError):
    """Training diverged. The metrics describe how; the best earlier model, if there is one, is kept."""


class MissingExtraError(NcelmError, ImportError):
    """An optional dependency is not installed."""
