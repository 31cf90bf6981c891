"""`python -m gaploop` is `gaploop`, where the environment's `bin` isn't on the path."""

import sys

from gaploop.scripts.cli import main

if __name__ == "__main__":
    sys.exit(main())
