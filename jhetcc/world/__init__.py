# SPDX-License-Identifier: Apache-2.0
"""Joining a job, communicators, raw calls; see README.md of this room."""

from .communicator import Communicator as Communicator
from .world import init as init
