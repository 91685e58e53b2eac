# SPDX-License-Identifier: Apache-2.0
"""``jhetcc secret``: prints a fresh job secret, or writes it to a file only its owner can read."""

from __future__ import annotations

import argparse
import sys

from jhetcc.world import secret


def run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="jhetcc secret", description="Makes a job secret of 256 random bits.")
    parser.add_argument(
        "--output", metavar="FILE", help="write it to this new file, mode 0600, and print how to use it"
    )
    values = parser.parse_args(arguments)
    if values.output is None:
        print(secret.generate())
        return 0
    try:
        secret.write(values.output)
    except OSError as why:
        print(f"jhetcc secret: cannot write {values.output}: {why.strerror}", file=sys.stderr)
        return 2
    print(f"Give every process of the job the same file: JHETCC_SECRET_FILE={values.output}")
    return 0
