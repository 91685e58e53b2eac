# SPDX-License-Identifier: Apache-2.0
"""The one table of options: name, default, meaning; set by argument or by ``JHETCC_<NAME>`` and read once, at ``init()``.

Pure: the environment is handed in. ``docs/options.md`` is written from this table by ``python -m jhetcc env --markdown``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jhetcc.errors import BadArgumentError
from jhetcc.option_values import auto as _auto
from jhetcc.option_values import count as _count
from jhetcc.option_values import duration as _duration
from jhetcc.option_values import limit as _limit
from jhetcc.option_values import log_spec as _log
from jhetcc.option_values import meant as _meant
from jhetcc.option_values import microseconds as _microseconds
from jhetcc.option_values import number as _number
from jhetcc.option_values import one_of as _one_of
from jhetcc.option_values import profile_name as _profile
from jhetcc.option_values import size as _bytes
from jhetcc.option_values import switch as _switch
from jhetcc.option_values import text as _text

__all__ = [
    "LIBRARIES",
    "PREFIX",
    "VERSION",
    "WIRE_VERSION",
    "Options",
    "Setting",
    "difference",
    "markdown",
    "read",
    "settings",
]

PREFIX = "JHETCC_"
LIBRARIES = ("none", "oneccl", "mpi")
VERSION = "0.1.0"
WIRE_VERSION = 5  # grows when frames, handshake or schedules change: processes of different numbers refuse each other


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
    tls: str = _option(
        "control",
        _one_of("control", "all", "off"),
        "system",
        "what a job with a secret encrypts by TLS 1.3: control (the coordinator's connections), all (data over tcp, too), or off",
        agreed=True,
    )
    cluster: str | None = _option(
        "",
        _text,
        "system",
        "label of the cluster this process belongs to: processes of equal label are one cluster, for plans, topology and texts",
    )
    library: str = _option(
        "none",
        _one_of(*LIBRARIES),
        "system",
        "collective library that joins the processes of this one's cluster: docs/libraries.md",
    )
    library_path: str | None = _option(
        "",
        _text,
        "system",
        "that library's file, a folder that holds it, or one with a folder a library as `make libraries` makes; empty: `libraries` in "
        "the Python environment, then where the system looks",
    )
    topology: str | None = _option(
        "",
        _text,
        "system",
        "JSON file of the machines, instead of those that are found: for `jhetcc topo`, and for the NICs that a job's plans know "
        "(process 0 reads it): docs/topology.md",
        agreed=True,
    )
    cache_dir: str | None = _option(
        "", _text, "system", "directory for what is measured once; unset: $XDG_CACHE_HOME/jhetcc, else ~/.cache/jhetcc"
    )
    interface: str | None = _option(
        "auto",
        _auto(_text),
        "system",
        "network interfaces to use, each as a NIC: names, addresses or CIDR ranges, comma separated; names are exact unless a * is "
        "written, and those of other hosts do no harm; auto: all that lead out of the machine; on loopback one: docs/rails.md",
    )
    paths_per_nic: int | None = _option(
        "auto",
        _auto(_number),
        "system",
        "connections between two ranks over each aligned pair of NICs; auto: one, and a spare one where both hosts have one NIC",
        agreed=True,
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
        _auto(_one_of("shm", "tcp", "verbs")),
        "tuning",
        "auto: shm within a host; between hosts verbs where both NICs have an RDMA device, else tcp; or force one of shm, tcp, verbs",
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
    profile: str = _option(
        "off",
        _profile,
        "tuning",
        "costs that plans are chosen by: off (built-in), auto (measured here once and kept in cache_dir), or a JSON file of them",
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
    values.setdefault("cache_dir", _cache_dir(environment))
    return _fit(values)


def _cache_dir(environment: Mapping[str, str]) -> str | None:
    """The user's place for caches (XDG base directories); None where nothing says who the user is."""
    base = environment.get("XDG_CACHE_HOME", "")
    if not base.startswith("/"):  # the standard ignores relative ones
        base = environment["HOME"] + "/.cache" if environment.get("HOME", "").startswith("/") else ""
    return f"{base}/jhetcc" if base else None


# Each first limit ends before the second, or the second would always hide it; why, in the words of the error.
_BEFORE = (
    ("connect_timeout", "init_timeout", True, "one connection attempt must end before init() itself gives up"),
    ("warn_after", "operation_timeout", False, "the warning must come before the operation is ended"),
    ("abort_gather", "abort_confirm", False, "the verdict must be able to come before the ranks give up on it"),
)


def _fit(values: dict[str, Any]) -> Options:
    options = Options(**values)
    if options.transport == "verbs" and options.tls == "all":
        raise BadArgumentError(
            "transport=verbs and tls=all contradict each other: adapters write and read memory themselves, and encrypt nothing. Use "
            "JHETCC_TRANSPORT=tcp, or JHETCC_TLS=control",
            code="bad_option",
            scope="process",
        )
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
            source = "default, lowered to fit" if isinstance(value, float) else "XDG_CACHE_HOME, or HOME"
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
