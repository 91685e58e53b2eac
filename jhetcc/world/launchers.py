# SPDX-License-Identifier: Apache-2.0
"""What each launcher tells its processes, one function a launcher; the environment is handed in, nothing else is read.

A function returns None where its launcher left no trace, an :class:`Ignored` where there is a trace but no process number (a shell inside
an allocation), a :class:`Found` where this process was launched, and raises where what was said contradicts itself.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jhetcc.errors import BadArgumentError
from jhetcc.world.hostlist import expand_hosts, expand_tasks

__all__ = ["LAUNCHERS", "Found", "Ignored", "derived_port"]


@dataclass(frozen=True)
class Ignored:
    """A launcher left a trace, but did not start this process."""

    launcher: str
    why: str


@dataclass(frozen=True)
class Found:
    """A launcher started this process."""

    launcher: str
    process_id: int
    num_processes: int
    numbers_from: str
    coordinator: str | None = None  # host:port
    coordinator_from: str = ""
    why_no_coordinator: str = ""
    local_id: int | None = None
    hosts: tuple[str, ...] = ()
    job: str | None = None


def derived_port(job: str) -> int:
    """A port above the range the system hands out, the same in all processes that name the same job."""
    return 61000 + zlib.crc32(job.encode()) % 4500


def _number(environment: Mapping[str, str], name: str, launcher: str) -> int:
    text = environment[name]
    if not (text.isascii() and text.isdigit()):
        raise _contradiction(launcher, f"{name} is {text!r}, which is no number")
    return int(text)


def _optional(environment: Mapping[str, str], name: str, launcher: str) -> int | None:
    return _number(environment, name, launcher) if name in environment else None


def _contradiction(launcher: str, why: str) -> BadArgumentError:
    return BadArgumentError(
        f"the environment of {launcher} contradicts itself: {why}. Start the process by {launcher} again, or say where it is with "
        "jhetcc.init(coordinator=..., process_id=..., num_processes=...).",
        code="bad_launch",
        scope="process",
    )


def _numbers(environment: Mapping[str, str], launcher: str, id_name: str, size_name: str) -> tuple[int, int]:
    process_id, size = _number(environment, id_name, launcher), _number(environment, size_name, launcher)
    if process_id >= size:
        raise _contradiction(launcher, f"{id_name} is {process_id} but {size_name} is {size}")
    return process_id, size


def _missing(environment: Mapping[str, str], launcher: str, trace: str, names: tuple[str, ...]) -> Ignored | None:
    absent = [name for name in names if name not in environment]
    return Ignored(launcher, f"{trace} is set but not {' and '.join(absent)}") if absent else None


def _on_one_host(found_job: str) -> tuple[str, str]:
    return f"127.0.0.1:{derived_port(found_job)}", "a derived port, all processes being on one host"


def torchrun(environment: Mapping[str, str], anchor: Callable[[], str]) -> Found | Ignored | None:
    """torchrun and everything that speaks its variables."""
    traces = [name for name in ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE") if name in environment]
    if not traces:
        return None
    if ignored := _missing(environment, "torchrun", traces[0], ("RANK", "WORLD_SIZE")):
        return ignored
    process_id, size = _numbers(environment, "torchrun", "RANK", "WORLD_SIZE")
    coordinator, origin, why = None, "", "MASTER_ADDR and MASTER_PORT are not both set"
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    if "MASTER_ADDR" in environment and "MASTER_PORT" in environment:
        host, port = environment["MASTER_ADDR"], _number(environment, "MASTER_PORT", "torchrun")
        origin = "MASTER_ADDR, MASTER_PORT"
        if environment.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true":
            # The agent itself listens on MASTER_PORT.
            restart = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
            port = derived_port(f"torchrun {host} {port} {run} {restart}")
            origin = "MASTER_ADDR and a port derived from MASTER_PORT, on which torchrun's agent listens itself"
        coordinator = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return Found(
        "torchrun",
        process_id,
        size,
        "RANK, WORLD_SIZE",
        coordinator,
        origin,
        why,
        local_id=_optional(environment, "LOCAL_RANK", "torchrun"),
        job=f"torchrun-{run}" if run else None,
    )


def open_mpi(environment: Mapping[str, str], anchor: Callable[[], str]) -> Found | Ignored | None:
    """Open MPI's mpirun; gives no address, but names the job by its PMIx namespace."""
    traces = [name for name in ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE") if name in environment]
    if not traces:
        return None
    if ignored := _missing(environment, "Open MPI", traces[0], ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")):
        return ignored
    process_id, size = _numbers(environment, "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    job = environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_ess_base_jobid")
    coordinator, origin = None, ""
    why = "the processes run on several hosts, and Open MPI names no address of process 0"
    if _optional(environment, "OMPI_COMM_WORLD_LOCAL_SIZE", "Open MPI") == size:
        coordinator, origin = _on_one_host(f"openmpi {job or anchor()}")
    return Found(
        "Open MPI",
        process_id,
        size,
        "OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE",
        coordinator,
        origin,
        why,
        local_id=_optional(environment, "OMPI_COMM_WORLD_LOCAL_RANK", "Open MPI"),
        job=f"openmpi-{job}" if job else None,
    )


def mpich(environment: Mapping[str, str], anchor: Callable[[], str]) -> Found | Ignored | None:
    """MPICH, Intel MPI and other children of Hydra; gives neither an address nor a name of the job."""
    traces = [name for name in ("PMI_RANK", "PMI_SIZE") if name in environment]
    if not traces:
        return None
    if ignored := _missing(environment, "MPICH", traces[0], ("PMI_RANK", "PMI_SIZE")):
        return ignored
    process_id, size = _numbers(environment, "MPICH", "PMI_RANK", "PMI_SIZE")
    coordinator, origin = None, ""
    why = "the processes run on several hosts, and MPICH names no address of process 0"
    if _optional(environment, "MPI_LOCALNRANKS", "MPICH") == size:
        # Hydra makes each rank the leader of its own session: the leader's parent is the proxy all ranks of the host share.
        coordinator, origin = _on_one_host(f"mpich {anchor()}")
    local_id = _optional(environment, "MPI_LOCALRANKID", "MPICH")
    return Found("MPICH", process_id, size, "PMI_RANK, PMI_SIZE", coordinator, origin, why, local_id=local_id)


def slurm(environment: Mapping[str, str], anchor: Callable[[], str]) -> Found | Ignored | None:
    """srun; a shell in an allocation and the batch script itself have only part of its variables."""
    job = environment.get("SLURM_JOB_ID")
    if job is None and "SLURM_PROCID" not in environment:
        return None
    size_name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    needed = ("SLURM_JOB_ID", "SLURM_PROCID", size_name, "SLURM_STEP_NODELIST")
    trace = "SLURM_JOB_ID" if job else "SLURM_PROCID"
    if ignored := _missing(environment, "SLURM", trace, needed):
        return Ignored("SLURM", ignored.why + ": this process is inside an allocation, but not started by srun")
    process_id, size = _numbers(environment, "SLURM", "SLURM_PROCID", size_name)
    try:
        hosts = expand_hosts(environment["SLURM_STEP_NODELIST"])
        tasks = expand_tasks(environment.get("SLURM_STEP_TASKS_PER_NODE", str(size)))
    except ValueError as why:
        raise _contradiction("SLURM", str(why)) from None
    if "SLURM_STEP_TASKS_PER_NODE" in environment and (len(tasks) != len(hosts) or sum(tasks) != size):
        raise _contradiction(
            "SLURM",
            f"SLURM_STEP_TASKS_PER_NODE={environment['SLURM_STEP_TASKS_PER_NODE']} is {sum(tasks)} tasks on {len(tasks)} hosts, "
            f"but {size_name} is {size} and SLURM_STEP_NODELIST names {len(hosts)} hosts",
        )
    name = f"{job}.{environment.get('SLURM_STEP_ID', '0')}"
    return Found(
        "SLURM",
        process_id,
        size,
        f"SLURM_PROCID, {size_name}",
        f"{hosts[0]}:{derived_port('slurm ' + name)}",
        "SLURM_STEP_NODELIST",
        local_id=_optional(environment, "SLURM_LOCALID", "SLURM"),
        hosts=tuple(hosts),
        job=f"slurm-{name}",
    )


def jobset(environment: Mapping[str, str], anchor: Callable[[], str]) -> Found | Ignored | None:
    """A Kubernetes JobSet whose pods get the labels as variables, as ``docs/launchers.md`` shows."""
    if "JOBSET_NAME" not in environment:
        return None
    needed = ("REPLICATED_JOB_NAME", "JOB_COMPLETION_INDEX", "PROCESSES_PER_JOB")
    if ignored := _missing(environment, "JobSet", "JOBSET_NAME", needed):
        return Ignored("JobSet", ignored.why + "; docs/launchers.md shows the manifest that sets it")
    per_job = _number(environment, "PROCESSES_PER_JOB", "JobSet")
    index = _number(environment, "JOB_COMPLETION_INDEX", "JobSet")
    job_index = _optional(environment, "JOB_INDEX", "JobSet") or 0
    jobs = _optional(environment, "REPLICATED_JOB_REPLICAS", "JobSet") or 1
    if index >= per_job or job_index >= jobs:
        raise _contradiction(
            "JobSet", f"pod {index} of {per_job} (JOB_COMPLETION_INDEX, PROCESSES_PER_JOB) in job {job_index} of {jobs}"
        )
    name, replicated = environment["JOBSET_NAME"], environment["REPLICATED_JOB_NAME"]
    job = f"{name}/{replicated}/{environment.get('JOBSET_RESTART_ATTEMPT', '0')}"
    return Found(
        "JobSet",
        job_index * per_job + index,
        jobs * per_job,
        "JOB_INDEX, JOB_COMPLETION_INDEX, REPLICATED_JOB_REPLICAS, PROCESSES_PER_JOB",
        f"{name}-{replicated}-0-0.{name}:{derived_port('jobset ' + job)}",
        "JOBSET_NAME, REPLICATED_JOB_NAME",
        hosts=tuple(f"{name}-{replicated}-{j}-{i}" for j in range(jobs) for i in range(per_job)),
        job=f"jobset-{job}",
    )


# The innermost first: mpirun inside an allocation starts its daemons by srun, and their SLURM numbers are not the processes'.
LAUNCHERS = (torchrun, open_mpi, mpich, slurm, jobset)
