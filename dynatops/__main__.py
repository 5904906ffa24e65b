"""`python -m dynatops` is the command `dynatops`."""

import sys

from dynatops.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
