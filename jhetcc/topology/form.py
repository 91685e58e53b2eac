# SPDX-License-Identifier: Apache-2.0
"""The JSON form of a topology: short enough to write by hand, strict when read, one canonical text for its hash. Any thread.

``docs/topology.md`` describes it. Reading names the place of whatever it refuses; nothing is guessed.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from jhetcc.topology.clusters import Identity, form_clusters
from jhetcc.topology.values import (
    RANKS_MAX,
    Cluster,
    Device,
    Host,
    Link,
    Nic,
    Rank,
    Socket,
    Topology,
    Unknown,
    bad,
    spans,
)

__all__ = ["VERSION", "digest", "dumps", "load", "loads"]

VERSION = 1
_BYTES_MAX = 16 << 20
_RANGE = re.compile(r"\[([0-9]{1,6})-([0-9]{1,6})\]")
_PARTS_MAX = 4 * RANKS_MAX  # devices and NICs of all hosts
_WHOLE = ("socket", "number", "memory_bytes")  # keys of whole numbers
_RANGED = ("name", "pci", "rdma", "address")


def load(path: str | os.PathLike[str]) -> Topology:
    """Reads the file that ``JHETCC_TOPOLOGY`` names.

    Raises:
      BadArgumentError: it cannot be read, or is no topology; names file, place and remedy.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(_BYTES_MAX + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as why:
        told = why.strerror if isinstance(why, OSError) else why
        raise bad(
            os.fspath(path), f"cannot be read: {told}; a topology is a JSON file, also that of JHETCC_TOPOLOGY"
        ) from None
    return loads(text, os.fspath(path))


def loads(text: str, origin: str = "topology") -> Topology:
    """Reads a topology from its JSON text; raises as ``load`` does.

    Example:
      >>> found = loads('{"jhetcc_topology": 1, "hosts": [{"name": "h[0-1]", "devices": [{"name": "gpu[0-3]", "vendor": "amd"}]}]}')
      >>> found.size, found.clusters[0].library
      (8, 'rccl')
    """
    if len(text) > _BYTES_MAX:
        raise bad(origin, f"larger than {_BYTES_MAX >> 20} MiB")
    try:
        data = json.loads(text, object_pairs_hook=_no_twins)
    except (ValueError, RecursionError) as why:
        raise bad(origin, f"no JSON: {why}") from None
    top = _table(data, origin, {"jhetcc_topology", "hosts"}, {"ranks", "clusters", "unknown"})
    if top["jhetcc_topology"] != VERSION or isinstance(top["jhetcc_topology"], bool):
        raise bad(origin, f"jhetcc_topology is {top['jhetcc_topology']!r}; this version reads {VERSION}")
    parts = 0

    def host(entry: Any, where: str) -> Host:
        nonlocal parts
        made = _host(entry, where)
        parts += len(made.devices) + len(made.nics)
        if parts > _PARTS_MAX:
            raise bad(where, f"more than {_PARTS_MAX} devices and NICs in all")
        return made

    hosts = tuple(_spread(_list(top, "hosts", origin), "hosts", host))
    ranks = _ranks(top, hosts)
    clusters = _clusters(top, hosts, ranks)
    unknown = tuple(Unknown(**_strings(each, where, Unknown)) for where, each in _numbered(top, "unknown", origin))
    return Topology(hosts, ranks, clusters, unknown)


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return table


def _table(data: Any, where: str, needed: set[str], optional: set[str]) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise bad(where, f"is {_kind(data)}, not a table {{...}}")
    legal = needed | optional
    for name in data:
        if name not in legal:
            near = difflib.get_close_matches(name, legal, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise bad(where, f"unknown key {name!r}{meant} Legal are {', '.join(sorted(legal))}")
    if lacking := sorted(needed - set(data)):
        raise bad(where, f"lacks {lacking[0]!r}")
    return data


def _list(table: Mapping[str, Any], key: str, where: str) -> list[Any]:
    found = table.get(key, [])
    if not isinstance(found, list):
        raise bad(where, f"{key} is {_kind(found)}, not a list [...]")
    return found


def _numbered(table: Mapping[str, Any], key: str, where: str) -> list[tuple[str, Any]]:
    return [(f"{key}[{k}]", each) for k, each in enumerate(_list(table, key, where))]


def _kind(data: Any) -> str:
    names = {dict: "a table", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(data), "a number")


def _strings(data: Any, where: str, kind: type) -> dict[str, Any]:
    """The fields of a value from a table, with the types that its dataclass writes down."""
    fields = {each.name: each for each in dataclasses.fields(kind)}
    needed = {name for name, each in fields.items() if each.default is dataclasses.MISSING}
    table = _table(data, where, needed, set(fields) - needed)
    for name, value in table.items():
        if name == "is_up":
            good, wanted = isinstance(value, bool), "true or false"
        elif name in _WHOLE:
            good, wanted = isinstance(value, int) and not isinstance(value, bool), "a whole number"
        elif name == "gbit_per_s":
            good, wanted = isinstance(value, int | float) and not isinstance(value, bool), "a number"
        else:
            good, wanted = isinstance(value, str), "a string"
        if not good:
            raise bad(where, f"{name} is {_kind(value)}, not {wanted}")
    return {name: float(value) if name == "gbit_per_s" else value for name, value in table.items()}


def _spread(entries: list[Any], key: str, make: Any) -> list[Any]:
    """One value an entry, or one a number of the range in its name: ``gpu[0-7]``."""
    found = []
    for k, entry in enumerate(entries):
        where = f"{key}[{k}]"
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise bad(where, "is no table {...} with a name")
        span = _RANGE.search(entry["name"])
        count = 1 if span is None else _length(span, where)
        if len(found) + count > RANKS_MAX:
            raise bad(key, f"more than {RANKS_MAX} of them")
        texts = {
            name: _expand(entry[name], count, f"{where}, {name}")
            for name in _RANGED
            if isinstance(entry.get(name), str)
        }
        copies = [entry | {name: texts[name][n] for name in texts} for n in range(count)]
        found += [make(copy, where) for copy in copies]
    return found


def _length(span: re.Match[str], where: str) -> int:
    first, last = int(span.group(1)), int(span.group(2))
    if not 0 <= last - first < RANKS_MAX:
        raise bad(where, f"the range {span.group()} is empty or too long")
    return last - first + 1


def _expand(text: str, count: int, where: str) -> list[str]:
    span = _RANGE.search(text)
    if span is None:
        return [text] * count
    if (length := _length(span, where)) != count:
        raise bad(where, f"the range {span.group()} has {length} numbers, that of the name {count}")
    return [f"{text[: span.start()]}{int(span.group(1)) + n}{text[span.end() :]}" for n in range(count)]


def _host(data: Any, where: str) -> Host:
    table = _table(data, where, {"name"}, {"devices", "nics", "links", "sockets"})

    def part(kind: type) -> Any:
        return lambda each, place: kind(**_strings(each, f"{where}, {place}", kind))

    devices = tuple(_spread(_list(table, "devices", where), "devices", part(Device)))
    nics = tuple(_spread(_list(table, "nics", where), "nics", part(Nic)))
    links = tuple(part(Link)(each, place) for place, each in _numbered(table, "links", where))
    sockets = tuple(part(Socket)(each, place) for place, each in _numbered(table, "sockets", where))
    return Host(table["name"], devices, nics, links, sockets)


def _ranks(top: Mapping[str, Any], hosts: tuple[Host, ...]) -> tuple[Rank, ...]:
    if "ranks" not in top:
        return tuple(Rank(host.name, device.name) for host in hosts for device in host.devices)
    found = []
    for where, each in _numbered(top, "ranks", "topology"):
        if not isinstance(each, str) or each.count("/") != 1:
            raise bad(where, f"is {each!r}; write host/device")
        found.append(Rank(*each.split("/")))
    return tuple(found)


def _clusters(top: Mapping[str, Any], hosts: tuple[Host, ...], ranks: tuple[Rank, ...]) -> tuple[Cluster, ...]:
    if "clusters" not in top:
        plain = Topology(hosts, (), ())
        for number, rank in enumerate(ranks):
            if rank not in plain._devices:
                raise bad(f"rank {number}", f"there is no {rank.host}/{rank.device}")
        return form_clusters([Identity.of_vendor(plain._devices[rank].vendor) for rank in ranks])
    found = []
    for where, each in _numbered(top, "clusters", "topology"):
        table = _table(each, where, {"vendor", "ranks"}, {"name", "library", "version"})
        for name in ("name", "vendor", "library", "version"):
            if not isinstance(table.get(name, ""), str):
                raise bad(where, f"{name} is {_kind(table[name])}, not a string")
        usual = Identity.of_vendor(table["vendor"])
        identity = Identity(
            table["vendor"], table.get("library", usual.library), table.get("version", ""), table.get("name", "")
        )
        found.append(Cluster(identity.cluster, *identity.kind, _numbers(table["ranks"], where)))
    return tuple(found)


def _numbers(data: Any, where: str) -> tuple[int, ...]:
    """``"0-3,8"`` or ``[0, 1, 2, 3, 8]``."""
    if isinstance(data, str):
        if not re.fullmatch(r"[0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?)*", data):
            raise bad(where, f"ranks {data!r}: write numbers and ranges, for example 0-3,8")
        spans = [[int(end) for end in part.split("-")] for part in data.split(",")]
        if sum(max(span[-1] - span[0], 0) + 1 for span in spans) > RANKS_MAX:
            raise bad(where, f"more than {RANKS_MAX} ranks")
        return tuple(number for span in spans for number in range(span[0], span[-1] + 1))
    if isinstance(data, list) and all(isinstance(each, int) and not isinstance(each, bool) for each in data):
        return tuple(data)
    raise bad(where, 'ranks is neither a list of numbers nor a text such as "0-3,8"')


def _plain(value: Any) -> dict[str, Any]:
    """A value's fields, those left out that have their default."""
    return {
        each.name: getattr(value, each.name)
        for each in dataclasses.fields(value)
        if getattr(value, each.name) != each.default
    }


def _data(topology: Topology) -> dict[str, Any]:
    hosts = []
    for host in topology.hosts:
        entry: dict[str, Any] = {"name": host.name}
        if host.sockets != host.implied_sockets:
            entry["sockets"] = [_plain(socket) for socket in host.sockets]
        for key in ("devices", "nics", "links"):
            if values := getattr(host, key):
                entry[key] = [_plain(value) for value in values]
        hosts.append(entry)
    clusters = [
        {name: value for name, value in dataclasses.asdict(each).items() if value != ""} | {"ranks": spans(each.ranks)}
        for each in topology.clusters
    ]
    ranks = [f"{rank.host}/{rank.device}" for rank in topology.ranks]
    return {"jhetcc_topology": VERSION, "hosts": hosts, "ranks": ranks, "clusters": clusters}


def dumps(topology: Topology) -> str:
    """The JSON text of a topology, one part a line; ``loads`` gives back an equal one."""
    data = _data(topology)
    if topology.unknown:
        data["unknown"] = [_plain(each) for each in topology.unknown]
    return _pretty(data, 0) + "\n"


def _pretty(data: Any, depth: int) -> str:
    flat = json.dumps(data, ensure_ascii=False)
    nested = isinstance(data, dict | list) and any(isinstance(each, dict | list) for each in _values(data))
    if not nested and not (isinstance(data, list) and len(flat) > 100):
        return flat
    pad, end = "  " * (depth + 1), "  " * depth
    if isinstance(data, dict):
        items = [f"{json.dumps(name)}: {_pretty(each, depth + 1)}" for name, each in data.items()]
        return "{\n" + ",\n".join(pad + item for item in items) + f"\n{end}}}"
    return "[\n" + ",\n".join(pad + _pretty(each, depth + 1) for each in data) + f"\n{end}]"


def _values(data: Any) -> Any:
    return data.values() if isinstance(data, dict) else data


def digest(topology: Topology) -> str:
    """32 hex digits, equal for equal topologies, whatever their files looked like; what could not be asked does not count."""
    text = json.dumps(_data(topology), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
