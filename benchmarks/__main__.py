"""`python -m benchmarks`. Kept tiny, since every worker process imports its parent's main module."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from .command import main

    sys.exit(main())
