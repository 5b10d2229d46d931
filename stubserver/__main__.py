"""`python -m stubserver`."""

import sys

from stubserver.cli import main

if __name__ == "__main__":
    sys.exit(main())
