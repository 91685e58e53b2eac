# SPDX-License-Identifier: Apache-2.0
"""The one table of options: name, default, meaning; set by argument or by ``JHETCC_<NAME>`` and read once, at ``init()``.

Pure: the environment is handed in. ``docs/options.md`` is written from this table by ``python -m jhetcc env --markdown``.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jhetcc.errors import BadArgumentError

__all__ = ["PREFIX", "VERSION", "WIRE_VERSION", "Options", "Setting", "difference", "markdown", "read", "settings"]

PREFIX = "JHETCC_"
VERSION = "0.1.0"
WIRE_VERSION = 1  # grows when frames, handshake or schedules change: processes of different numbers refuse each other

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES = {"": 1, "b": 1, "kb": 1 << 10, "kib": 1 << 10, "mb": 1 << 20, "mib": 1 << 20, "gb": 1 << 30, "gib": 1 << 30}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)")
_LEVELS = ("off", "error", "warn", "info", "debug", "trace")


# Parsers: text to value; ValueError carries what would have been right.
def _text(text: str) -> str | None:
    return text or None


def _quantity(text: str, units: Mapping[str, float], example: str) -> float:
    match = _QUANTITY.fullmatch(text.strip().lower())
    if not match or match.group(2) not in units:
        raise ValueError(
            f"write a number with a unit of {', '.join(unit for unit in units if unit)}, for example {example}"
        )
    return float(match.group(1)) * units[match.group(2)]


def _duration(text: str) -> float:
    seconds = math.inf if text.strip().lower() == "inf" else _quantity(text, _SECONDS, "10s, 500ms or inf")
    if seconds <= 0:
        raise ValueError("a duration is longer than nothing, for example 10s")
    return seconds


def _limit(text: str) -> float:
    if math.isinf(seconds := _duration(text)):
        raise ValueError("this wait needs an end, for example 10s")
    return seconds


def _auto(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: None if text.strip().lower() == "auto" else parse(text)


def _bytes(text: str) -> int:
    size = _quantity(text, _BYTES, "8kb")
    if size < 1 or size != int(size):
        raise ValueError("write a whole number of bytes, at least 1, for example 8kb")
    return int(size)


def _microseconds(text: str) -> float:
    if text.strip() == "0":
        return 0.0
    return round(_quantity(text if re.search("[a-z]", text.lower()) else text + "us", _SECONDS, "50us") * 1e6, 3)


def _count(text: str) -> int | None:
    if not text:
        return None
    if not re.fullmatch("[0-9]+", text):
        raise ValueError("write a whole number, 0 or more")
    return int(text)


def _one_of(*values: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.strip().lower() not in values:
            raise ValueError(f"write one of {', '.join(values)}{_meant(text, values)}")
        return text.strip().lower()

    return parse


def _switch(text: str) -> bool:
    return _one_of("no", "yes", "0", "1", "false", "true")(text) in ("yes", "1", "true")


def _log(text: str) -> str:
    for part in text.lower().split(","):
        if part.rpartition("=")[2] not in _LEVELS:
            raise ValueError(
                f"write a level ({', '.join(_LEVELS)}) or room=level, comma separated, for example warn,net=debug"
            )
    return text.lower()


def _meant(word: str, known: tuple[str, ...] | list[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def _option(default: str, parse: Callable[[str], Any], kind: str, text: str, *, agreed=False, hidden=False) -> Any:
    about = {"default": default, "parse": parse, "kind": kind, "help": text, "agreed": agreed, "hidden": hidden}
    return field(default=parse(default), metadata=about, repr=not hidden)


@dataclass(frozen=True)
class Options:
    """Every setting of one process. Durations are seconds, sizes bytes; None means unset, or chosen automatically."""

    # system: what the job is and where it runs
    coordinator: str | None = _option("", _text, "system", "host:port where process 0 listens")
    process_id: int | None = _option("", _count, "system", "number of this process, from 0")
    num_processes: int | None = _option("", _count, "system", "how many processes the job has")
    job: str | None = _option("", _text, "system", "name of the job: processes of another job are refused")
    secret: str | None = _option("", _text, "system", "the job's secret itself; a file is safer", hidden=True)
    secret_file: str | None = _option("", _text, "system", "file with the job's secret, readable by its owner only")
    secret_fd: int | None = _option("", _count, "system", "inherited file descriptor to read the job's secret from")
    allow_insecure: bool = _option(
        "no", _switch, "system", "run without a secret beyond loopback: anyone who reaches the ports can join"
    )
    cluster: str | None = _option(
        "", _text, "system", "label of the cluster this process belongs to, for topology and texts"
    )
    topology: str | None = _option(
        "", _text, "system", "JSON file of the machines that `jhetcc topo` shows instead of this one: docs/topology.md"
    )
    interface: str | None = _option(
        "",
        _text,
        "system",
        "network interfaces to use: names, addresses or CIDR ranges, comma separated; names are exact unless a * is written",
    )
    # tuning: how fast, how patient
    init_timeout: float = _option("300s", _limit, "tuning", "init() fails when not all processes came within this time")
    connect_timeout: float = _option(
        "30s", _limit, "tuning", "limit of one connection attempt, handshake included; at most init_timeout"
    )
    operation_timeout: float = _option(
        "300s",
        _duration,
        "tuning",
        "an operation that waits longer for a rank ends with an error; inf waits on",
        agreed=True,
    )
    warn_after: float = _option(
        "30s", _duration, "tuning", "an operation that waits longer is named in the log; below operation_timeout"
    )
    abort_gather: float = _option(
        "1s",
        _limit,
        "tuning",
        "after a failure, how long the deciding rank waits for the others' reports; below abort_confirm",
        agreed=True,
    )
    abort_confirm: float = _option(
        "2s",
        _limit,
        "tuning",
        "after a failure, how long a rank waits for the common verdict before it raises its own",
        agreed=True,
    )
    close_timeout: float = _option("5s", _limit, "tuning", "how long close() waits for bytes under way and for peers")
    spin_us: float | None = _option(
        "auto", _auto(_microseconds), "tuning", "how long a waiting thread spins before it yields and sleeps, in us"
    )
    transport: str | None = _option(
        "auto",
        _auto(_one_of("shm", "tcp")),
        "tuning",
        "auto: shm within a host, tcp between hosts; or force one of shm, tcp",
    )
    cma: str | None = _option(
        "auto",
        _auto(_one_of("off")),
        "tuning",
        "auto: shm reads a peer's memory directly where allowed; off: shared segments",
    )
    tcp_congestion: str | None = _option(
        "cubic", _text, "tuning", "congestion control asked for on each tcp connection; empty keeps the system's"
    )
    chunk_bytes: int | None = _option(
        "auto", _auto(_bytes), "tuning", "size of the pieces a schedule moves", agreed=True
    )
    algorithm: str | None = _option(
        "auto",
        _auto(
            _one_of(
                *("direct", "one_shot", "two_shot", "halving_doubling", "ring", "tree"),
                *("hierarchical", "hierarchical_border", "hierarchical_sequential", "hierarchical_border_sequential"),
            )
        ),
        "tuning",
        "auto: chosen by size; or force one for the operations it fits",
        agreed=True,
    )
    simd: str | None = _option(
        "auto", _auto(_one_of("base", "avx2", "avx512")), "tuning", "instruction set of the reductions on the host"
    )
    # debug: what is told
    log: str = _option(
        "warn",
        _log,
        "debug",
        "log level, or levels by room: off, error, warn, info, debug, trace; for example warn,net=debug",
    )
    trace_dir: str | None = _option("", _text, "debug", "directory for the flight recorder's dumps after a failure")

    def agreed(self) -> str:
        """What must be equal in all processes, one ``name=value`` a line; compare with :func:`difference`."""
        lines = [f"library={VERSION}", f"wire={WIRE_VERSION}"]
        for each in dataclasses.fields(self):
            if each.metadata["agreed"]:
                value = getattr(self, each.name)
                lines.append(f"{each.name}={'auto' if value is None else value}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Setting:
    """One row for people: what an option is now and who set it."""

    name: str
    variable: str
    default: str
    value: str
    source: str
    kind: str
    help: str


def _fields() -> dict[str, dataclasses.Field]:
    return {each.name: each for each in dataclasses.fields(Options)}


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    legal = [PREFIX + name.upper() for name in _fields()]
    unknown = sorted(name for name in environment if name.startswith(PREFIX) and name not in legal)
    if unknown:
        raise BadArgumentError(
            f"unknown environment variable {unknown[0]}{_meant(unknown[0], legal) or '.'} Legal are: {', '.join(legal)}. "
            "Unset it or correct its name.",
            code="unknown_option",
            scope="process",
        )


def read(environment: Mapping[str, str], overrides: Mapping[str, Any] | None = None) -> Options:
    """Reads the options of this process.

    Args:
      environment: where ``JHETCC_*`` variables are looked up, usually ``os.environ``.
      overrides: values that win over the environment, by option name; text as in the environment, or plain numbers; None is unset.

    Returns:
      The options. A default that does not fit below a limit which was set is lowered to fit.

    Raises:
      BadArgumentError: unknown variable or option, a value that cannot be read, or limits that contradict each other.

    Example:
      >>> from jhetcc import config
      >>> config.read({"JHETCC_CHUNK_BYTES": "8kb"}, {"operation_timeout": 10}).chunk_bytes
      8192
    """
    _refuse_unknown(environment)
    known = _fields()
    values: dict[str, Any] = {}
    for name in overrides or {}:
        if name not in known:
            raise BadArgumentError(f"unknown option {name}{_meant(name, list(known))}", code="unknown_option")
    for name, each in known.items():
        given = (overrides or {}).get(name)
        variable = PREFIX + name.upper()
        source = f"argument {name}" if given is not None else variable
        text = environment.get(variable) if given is None else str(given)
        if text is None:
            continue
        try:
            values[name] = each.metadata["parse"](text)
        except ValueError as why:
            shown = "(hidden)" if each.metadata["hidden"] else repr(text)
            raise BadArgumentError(
                f"{source} is {shown}, which is no value of option {name} ({each.metadata['help']}): {why}",
                code="bad_option",
                scope="process",
            ) from None
    return _fit(values)


# Each first limit ends before the second, or the second would always hide it; why, in the words of the error.
_BEFORE = (
    ("connect_timeout", "init_timeout", True, "one connection attempt must end before init() itself gives up"),
    ("warn_after", "operation_timeout", False, "the warning must come before the operation is ended"),
    ("abort_gather", "abort_confirm", False, "the verdict must be able to come before the ranks give up on it"),
)


def _fit(values: dict[str, Any]) -> Options:
    options = Options(**values)
    for first, second, equal, why in _BEFORE:
        short, long = getattr(options, first), getattr(options, second)
        if short < long or math.isinf(long) or (equal and short == long):
            continue
        if first not in values:
            options = dataclasses.replace(options, **{first: long if equal else long / 2})
        elif second not in values:
            raise BadArgumentError(
                _contradiction(first, short, second, long, why) + f" Raise {second} as well.",
                code="bad_option",
                scope="process",
            )
        else:
            raise BadArgumentError(_contradiction(first, short, second, long, why), code="bad_option", scope="process")
    return options


def _contradiction(first: str, short: float, second: str, long: float, why: str) -> str:
    return (
        f"{first}={short:g}s is not below {second}={long:g}s: {why}. Set {PREFIX}{first.upper()} below {PREFIX}{second.upper()} "
        "(docs/options.md has all limits in one table)."
    )


def difference(mine: str, other: str) -> str | None:
    """Names the first setting in which two processes' ``agreed()`` texts differ, with both values; None if they are equal."""
    here, there = (dict(line.split("=", 1) for line in text.splitlines() if "=" in line) for text in (mine, other))
    for name in [*here, *(name for name in there if name not in here)]:
        if here.get(name) != there.get(name):
            return f"{name} is {here.get(name, 'unknown')} here and {there.get(name, 'unknown')} there"
    return None


def settings(environment: Mapping[str, str]) -> list[Setting]:
    """All options with their present values and where each comes from; a secret's value is never shown."""
    options = read(environment)
    rows = []
    for name, each in _fields().items():
        variable = PREFIX + name.upper()
        value = getattr(options, name)
        source = variable if variable in environment else "default"
        if source == "default" and value != each.default:
            source = "default, lowered to fit"
        shown = "(hidden)" if each.metadata["hidden"] and value else _shown(name, value, each.metadata["default"])
        rows.append(
            Setting(
                name, variable, each.metadata["default"], shown, source, each.metadata["kind"], each.metadata["help"]
            )
        )
    return rows


def _shown(name: str, value: Any, default: str) -> str:
    if value is None:
        return default if default == "auto" else ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    unit = "s" if name.endswith(("_timeout", "_after", "_gather", "_confirm")) else ""
    return f"{value:g}{unit}" if isinstance(value, float) else str(value)


def markdown() -> str:
    """The page ``docs/options.md``."""
    lines = [
        "# Options",
        "",
        "Written from `jhetcc/config.py` by `python -m jhetcc env --markdown`; do not edit. Each option is an environment variable, read once at",
        "`jhetcc.init()`; arguments of `init()` win over it. Unknown `JHETCC_*` variables are refused. Durations: `10s`, `500ms`, `5m`, `inf`.",
        "Sizes: `8kb` is 8192 bytes. Options marked * must be equal in all processes; a difference is refused at `init()` by name.",
    ]
    for kind, about in (
        ("system", "what the job is, and where it runs"),
        ("tuning", "how fast, how patient"),
        ("debug", "what is told"),
    ):
        lines += ["", f"## {kind.capitalize()}: {about}", "", "| variable | default | meaning |", "|---|---|---|"]
        for name, each in _fields().items():
            about = each.metadata
            if about["kind"] == kind:
                mark = " *" if about["agreed"] else ""
                default = f"`{about['default']}`" if about["default"] else "unset"
                lines.append(f"| `{PREFIX}{name.upper()}`{mark} | {default} | {about['help']} |")
    lines += ["", "## Limits that depend on each other", "", "| limit | ends before | why |", "|---|---|---|"]
    lines += [f"| `{first}` | `{second}` | {why} |" for first, second, _, why in _BEFORE]
    lines += [
        "",
        "A default that does not fit below a limit which was set is lowered to fit; two values that were set and contradict each other are refused.",
    ]
    return "\n".join(lines) + "\n"
