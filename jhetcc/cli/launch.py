# SPDX-License-Identifier: Apache-2.0
"""``jhetcc launch``: see the room ``launch``."""

from __future__ import annotations

from jhetcc import launch


def run(arguments: list[str]) -> int:
    return launch.run(launch.read_arguments(arguments))
