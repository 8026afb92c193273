"""The exceptions that ncelm raises for errors a user can fix, and for signals."""


class NcelmError(Exception):
    """An invalid argument or input.

    The message is one line that states the problem and the remedy. The command line prints it and exits with code 2.
    Any other exception that reaches a user is a bug in ncelm.
    """

    def __init__(self, message: str = "") -> None:
        # a reason that comes from a library, or the name of a file, may have several lines
        super().__init__(" ".join(str(message).splitlines()))


class ArgumentError(NcelmError, ValueError):
    """An argument with an invalid value."""


class ArgumentTypeError(NcelmError, TypeError):
    """An argument of a wrong type."""


class DivergedError(NcelmError):
    """Training diverged. The metrics describe how; the best earlier model, if there is one, is kept."""


class MissingExtraError(NcelmError, ImportError):
    """An optional dependency is not installed."""


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM. Code that cleans up after Ctrl-C cleans up after this, too."""
