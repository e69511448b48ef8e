"""`python -m ridgeline_exporters.gpu`."""

import sys

from ridgeline_exporters.gpu.command import main

if __name__ == "__main__":
    sys.exit(main())
