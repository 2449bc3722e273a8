"""``python -m loopguard`` is the command ``loopguard``; without arguments it plays the demo."""

from __future__ import annotations

import sys

from loopguard.cli import main

if __name__ == "__main__":
    sys.exit(main())
