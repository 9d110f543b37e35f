"""`python -m tangram` is the command `tangram`."""

import sys

from tangram.cli.main import main

sys.exit(main())
