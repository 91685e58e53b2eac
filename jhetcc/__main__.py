# SPDX-License-Identifier: Apache-2.0
"""``python -m jhetcc`` is the command ``jhetcc``."""

import sys

from jhetcc.cli import main

if __name__ == "__main__":
    sys.exit(main())
