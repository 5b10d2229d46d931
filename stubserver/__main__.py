"""`python -m stubserver`."""

import gc
import sys

gc.disable()  # as in `cli.serve`
from stubserver.cli import main  # noqa: E402

gc.enable()

if __name__ == "__main__":
    sys.exit(main())
