"""`python -m ncelm` is the command line too."""

import sys

from ncelm.cli import main

sys.exit(main())
