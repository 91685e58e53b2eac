# SPDX-License-Identifier: Apache-2.0
"""Who started this process: its number, how many there are, where process 0 listens; and one line that says how that was found.

Pure: the environment is handed in. Called once, by ``init()``. The launchers' own variables are read in ``launchers.py``.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from jhetcc.errors import BadArgumentError
from jhetcc.world.launchers import LAUNCHERS, Found, Ignored

__all__ = ["Launch", "detect", "is_loopback", "refuse_loopback", "session_anchor", "split_address"]

_OVERRIDE = "override with jhetcc.init(coordinator=..., process_id=..., num_processes=...)"


@dataclass(frozen=True)
class Launch:
    """Where this process stands in its job.

    Attributes:
      process_id: number of this process, from 0.
      num_processes: how many there are; 1 needs no network.
      coordinator: ``host:port`` where process 0 listens; None for a lone process.
      local_id: number of this process on its host, where the launcher says so.
      hosts: names of the job's hosts, where the launcher says so, else empty.
      job: the launcher's name of the job, the same in all processes and different in another job, else None.
      launcher: who was detected, for texts.
      source: one line for people: what was found, from which variables, and how to override it.
    """

    process_id: int
    num_processes: int
    coordinator: str | None
    local_id: int | None
    hosts: tuple[str, ...]
    job: str | None
    launcher: str
    source: str


def session_anchor() -> str:
    """Names the parent of this process's session leader: the one thing all local ranks of an anonymous launcher share.

    ``"0"`` where that leader is outside of this container, and with it everything that could tell one job from another.
    """
    leader = os.getsid(0)
    if leader == 0:
        return "0"
    with open(f"/proc/{leader}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[1]


def split_address(address: str) -> tuple[str, int]:
    """Splits ``host:port`` or ``[v6]:port``; raises BadArgumentError where it is neither."""
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    good = (
        colon
        and host
        and port.isascii()
        and port.isdigit()
        and 0 < int(port) < 65536
        and (bracketed or ":" not in host)
    )
    if not good:
        raise BadArgumentError(
            f"coordinator {address!r} is no address: write host:port, for example 10.0.0.1:45123 or [fe80::1]:45123",
            code="bad_address",
            scope="process",
        )
    return (host[1:-1] if bracketed else host), int(port)


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this very machine."""
    if host.lower() in ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_loopback(coordinator: str | None, hosts: Iterable[str]) -> None:
    """Refuses a coordinator that only its own host can reach, before anybody waits for it.

    Args:
      coordinator: ``host:port``, as configured or as resolved; None passes.
      hosts: names of the hosts of the job, as far as known; repeats do not matter.

    Raises:
      BadArgumentError: the address is loopback and there are several hosts.
    """
    known = sorted(set(hosts))
    if coordinator is None or len(known) < 2 or not is_loopback(split_address(coordinator)[0]):
        return
    raise BadArgumentError(
        f"coordinator {coordinator} is a loopback address, which no other host can reach, but the job spans {len(known)} hosts "
        f"({', '.join(known[:4])}{', ...' if len(known) > 4 else ''}). Give an address of process 0's host that the others reach: "
        "jhetcc.init(coordinator=...) or JHETCC_COORDINATOR.",
        code="loopback_coordinator",
        scope="process",
    )


def detect(
    environment: Mapping[str, str],
    *,
    coordinator: str | None = None,
    process_id: int | None = None,
    num_processes: int | None = None,
    anchor: Callable[[], str] = session_anchor,
) -> Launch:
    """Finds out who started this process.

    Arguments win over ``JHETCC_*`` variables, those over launchers; the innermost launcher wins. A coordinator alone replaces that of
    the launcher.

    Args:
      environment: usually ``os.environ``.
      coordinator: ``host:port`` where process 0 listens.
      process_id: number of this process.
      num_processes: how many there are.
      anchor: names what the local processes of a launcher without a job name have in common.

    Returns:
      The launch; a lone process where nothing was found.

    Raises:
      BadArgumentError: what was said contradicts itself, or is not enough.

    Example:
      >>> from jhetcc.world.detect import detect
      >>> detect({"PMI_RANK": "1", "PMI_SIZE": "2"}, coordinator="10.0.0.1:45123").process_id
      1
    """
    given, origins = _given(environment, coordinator, process_id, num_processes)
    if ("process_id" in given) != ("num_processes" in given) and given.get("num_processes") != 1:
        have, lack = ("process_id", "num_processes") if "process_id" in given else ("num_processes", "process_id")
        raise _not_enough(f"{origins[have]} is given but {lack} is not: give both or neither")
    if "num_processes" in given:
        return _explicit(given, origins)

    ignored: list[Ignored] = []
    found: Found | None = None
    for launcher in LAUNCHERS:
        answer = launcher(environment, anchor)
        if isinstance(answer, Ignored):
            ignored.append(answer)
        elif isinstance(answer, Found):
            found = _preferred(found, answer)
    unheard = "".join(f"; ignored {each.launcher}: {each.why}" for each in ignored)
    if found is None:
        if "coordinator" in given:
            raise _not_enough(f"{origins['coordinator']} is given, but no launcher says which process this is{unheard}")
        text = f"no launcher detected: one process, no network{unheard}; {_OVERRIDE}"
        return Launch(0, 1, None, None, (), None, "none", text)
    if "coordinator" in given:
        address = str(given["coordinator"])
        found = dataclasses.replace(found, coordinator=address, coordinator_from=origins["coordinator"])
    return _launch(found, unheard)


def _given(environment: Mapping[str, str], coordinator, process_id, num_processes) -> tuple[dict, dict[str, str]]:
    given: dict[str, str | int] = {}
    origins: dict[str, str] = {}
    arguments = {"coordinator": coordinator, "process_id": process_id, "num_processes": num_processes}
    for name, value in arguments.items():
        variable = "JHETCC_" + name.upper()
        if value is None and (text := environment.get(variable)):
            value, origins[name] = text, variable
        elif value is not None:
            origins[name] = f"argument {name}"
        if value is None:
            continue
        if name != "coordinator" and not (isinstance(value, int) or (value.isascii() and value.isdigit())):
            raise _not_enough(f"{origins[name]} is {value!r}, which is no number")
        given[name] = str(value) if name == "coordinator" else int(value)
    if "coordinator" in given:
        split_address(str(given["coordinator"]))
    return given, origins


def _explicit(given: Mapping[str, str | int], origins: Mapping[str, str]) -> Launch:
    size, number = int(given["num_processes"]), int(given.get("process_id", 0))
    if size < 1 or not 0 <= number < size:
        raise _not_enough(f"process {number} of {size} cannot be: numbers run from 0 to num_processes - 1")
    coordinator = str(given["coordinator"]) if "coordinator" in given else None
    if size == 1:
        coordinator = None
    elif coordinator is None:
        raise _not_enough(
            f"process {number} of {size} needs to know where process 0 listens, but no coordinator is given"
        )
    numbers = ", ".join(origins[name] for name in ("process_id", "num_processes") if name in origins)
    address = f"; coordinator {coordinator} from {origins['coordinator']}" if coordinator else ", no network"
    ours = all(name.startswith("JHETCC_") for name in origins.values())
    who = "JHETCC_* variables" if ours else "arguments"
    return Launch(
        number, size, coordinator, None, (), None, who, f"{who}: process {number} of {size} from {numbers}{address}"
    )


def _preferred(first: Found | None, second: Found) -> Found:
    # The same numbers twice (srun --mpi=pmi2): the one that knows where process 0 is says more.
    if first is None:
        return second
    same = (first.process_id, first.num_processes) == (second.process_id, second.num_processes)
    return second if same and second.hosts and not first.hosts else first


def _launch(found: Found, unheard: str) -> Launch:
    if found.num_processes > 1 and found.coordinator is None:
        raise _not_enough(
            f"detected {found.launcher}: process {found.process_id} of {found.num_processes} from {found.numbers_from}, but "
            f"{found.why_no_coordinator}"
        )
    coordinator = found.coordinator if found.num_processes > 1 else None
    if coordinator:
        split_address(coordinator)
        refuse_loopback(coordinator, found.hosts)
    where = f"; coordinator {coordinator} from {found.coordinator_from}" if coordinator else ", no network"
    source = (
        f"detected {found.launcher}: process {found.process_id} of {found.num_processes} from {found.numbers_from}{where}"
        f"{unheard}; {_OVERRIDE}"
    )
    return Launch(
        found.process_id,
        found.num_processes,
        coordinator,
        found.local_id,
        found.hosts,
        found.job,
        found.launcher,
        source,
    )


def _not_enough(what: str) -> BadArgumentError:
    return BadArgumentError(
        f"{what}. Say it with jhetcc.init(coordinator='host:port', process_id=..., num_processes=...), or set JHETCC_COORDINATOR "
        "(for example 10.0.0.1:45123, an address of process 0's host), JHETCC_PROCESS_ID and JHETCC_NUM_PROCESSES.",
        code="bad_launch",
        scope="process",
    )
