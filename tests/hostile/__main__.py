"""The entry point of `python -m tests.hostile`."""

import sys

from tests.hostile.driver import main

sys.exit(main())
