"""`python -m ncelm`, and the command `ncelm`: the command line, with an answer to Ctrl-C from the first moment."""

import sys


def main() -> int:
    """Run the command line."""
    try:
        from ncelm.cli.main import main as command_line
    except KeyboardInterrupt:  # importing Numba takes a second
        print("ncelm: stopped by Ctrl-C", file=sys.stderr)
        return 130
    return command_line()


if __name__ == "__main__":
    sys.exit(main())
