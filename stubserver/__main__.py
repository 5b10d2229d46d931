"""`python -m stubserver`."""

import gc
import os
import sys

gc.disable()  # as in `cli.serve`
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # else pydantic looks through all that is installed
from stubserver.cli import main  # noqa: E402

gc.enable()

if __name__ == "__main__":
    sys.exit(main())
