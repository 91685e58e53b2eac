# SPDX-License-Identifier: Apache-2.0
"""What exists: hosts, devices, NICs, links and clusters as plain values; discovery, JSON, text, picture. See README.md of this room."""

from .clusters import LIBRARIES as LIBRARIES
from .clusters import Identity as Identity
from .clusters import form_clusters as form_clusters
from .discover import VENDOR_OF_PLATFORM as VENDOR_OF_PLATFORM
from .discover import Seen as Seen
from .discover import discover as discover
from .discover import host_name as host_name
from .distance import Border as Border
from .distance import Choice as Choice
from .distance import between as between
from .distance import borders as borders
from .distance import by_distance as by_distance
from .distance import choose_nics as choose_nics
from .form import digest as digest
from .form import dumps as dumps
from .form import load as load
from .form import loads as loads
from .matrix import text as text
from .picture import svg as svg
from .values import Cluster as Cluster
from .values import Device as Device
from .values import Host as Host
from .values import Link as Link
from .values import Nic as Nic
from .values import Rank as Rank
from .values import Socket as Socket
from .values import Topology as Topology
from .values import Unknown as Unknown
