"""`python -m attnres` is the `attnres` command."""

import sys

from attnres.cli import main

sys.exit(main())
