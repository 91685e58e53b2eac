# SPDX-License-Identifier: Apache-2.0
"""What processes recorded, for people: timelines; see README.md of this room."""

from .timeline import timeline as timeline
