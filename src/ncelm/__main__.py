"""The entry point of `ncelm` and `python -m ncelm`; it handles Ctrl-C during imports, too."""

import sys


def main() -> int:
    """Run the command line; return its exit code."""
    try:
        from ncelm.cli.main import main as command_line
    except KeyboardInterrupt:
        print("ncelm: stopped by Ctrl-C", file=sys.stderr)
        return 130
    return command_line()


if __name__ == "__main__":
    sys.exit(main())
