"""The entry point of `ncelm` and `python -m ncelm`; it handles Ctrl-C and SIGTERM during imports, too."""

import os
import signal
import sys

STOPPED = (130, 143)  # exit codes after Ctrl-C and SIGTERM


def main() -> int:
    """Run the command line; return its exit code."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    try:
        from ncelm.cli.main import main as command_line

        code = command_line()
    except KeyboardInterrupt:
        print("ncelm: stopped by Ctrl-C", file=sys.stderr)
        code = 130
    if code in STOPPED:
        # All work is undone or saved. Do not wait for threads that are compiling, which may take seconds.
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
