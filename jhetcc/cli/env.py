# SPDX-License-Identifier: Apache-2.0
"""``jhetcc env``: the option table with present values and where they come from."""

from __future__ import annotations

import argparse
import os

from jhetcc import config


def run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="jhetcc env", description="Lists all options with their present values.")
    parser.add_argument("--markdown", action="store_true", help="print the page docs/options.md instead")
    values = parser.parse_args(arguments)
    if values.markdown:
        print(config.markdown(), end="")
        return 0
    rows = config.settings(os.environ)
    width = max(len(row.variable) for row in rows)
    for kind in ("system", "tuning", "debug"):
        print(f"{kind}:")
        for row in rows:
            if row.kind == kind:
                print(f"  {row.variable:{width}}  {row.value or 'unset':10}  ({row.source})  {row.help}")
    return 0
