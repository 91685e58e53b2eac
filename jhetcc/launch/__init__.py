# SPDX-License-Identifier: Apache-2.0
"""Starts the processes of a job on one machine; on several machines use their launcher (``docs/launchers.md``)."""

from jhetcc.launch.arguments import Island, Job, parse_islands, read_arguments
from jhetcc.launch.supervise import run

__all__ = ["Island", "Job", "parse_islands", "read_arguments", "run"]
