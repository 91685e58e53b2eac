# SPDX-License-Identifier: Apache-2.0
"""Launcher detection with each launcher's own environment, handed in; nothing here reads the real one."""

import os

import pytest

from jhetcc.errors import BadArgumentError
from jhetcc.world.detect import detect, is_loopback, refuse_loopback, session_anchor, split_address

SLURM = {
    "SLURM_JOB_ID": "4242",
    "SLURM_STEP_ID": "1",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NODELIST": "a[001-003]",
    "SLURM_STEP_TASKS_PER_NODE": "3(x2),2",
}
TORCHRUN = {
    "RANK": "2",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "head",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "abc",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-vm-6090@1",
    "PMIX_RANK": "1",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_FD": "9"}
JOBSET = {
    "JOBSET_NAME": "train",
    "REPLICATED_JOB_NAME": "cuda",
    "REPLICATED_JOB_REPLICAS": "2",
    "JOB_INDEX": "1",
    "JOB_COMPLETION_INDEX": "2",
    "PROCESSES_PER_JOB": "4",
}


def fixed_anchor():
    return "1234"


def found(environment, **arguments):
    return detect(environment, anchor=fixed_anchor, **arguments)


def test_slurm():
    launch = found(SLURM)
    assert (launch.process_id, launch.num_processes, launch.local_id) == (3, 8, 1)
    assert launch.hosts == ("a001", "a002", "a003") and launch.job == "slurm-4242.1"
    host, port = split_address(launch.coordinator)
    assert host == "a001" and 61000 <= port < 65536
    assert launch.source.startswith(
        "detected SLURM: process 3 of 8 from SLURM_PROCID, SLURM_STEP_NUM_TASKS; coordinator a001:"
    )
    assert "from SLURM_STEP_NODELIST" in launch.source and "override with jhetcc.init(" in launch.source


def test_port_depends_on_job_and_step_only():
    assert found(SLURM).coordinator == found(SLURM | {"SLURM_PROCID": "0"}).coordinator
    others = {found(SLURM | {"SLURM_JOB_ID": str(job)}).coordinator for job in range(4242, 4262)}
    assert len(others) > 15
    assert found(SLURM | {"SLURM_STEP_ID": "2"}).coordinator != found(SLURM).coordinator


@pytest.mark.parametrize(
    "environment",
    [
        {"SLURM_JOB_ID": "7"},
        {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a[1-2]"},
        {
            "SLURM_JOB_ID": "7",
            "SLURM_PROCID": "0",
            "SLURM_NTASKS": "8",
            "SLURM_JOB_NODELIST": "a[1-2]",
        },  # the batch script itself
        {"SLURM_PROCID": "0"},
    ],
)
def test_shell_inside_an_allocation_is_a_lone_process(environment):
    launch = found(environment)
    assert (launch.process_id, launch.num_processes, launch.coordinator) == (0, 1, None)
    assert (
        "ignored SLURM" in launch.source
        and "not started by srun" in launch.source
        and "is set but not" in launch.source
    )


@pytest.mark.parametrize(
    ("change", "needle"),
    [
        ({"SLURM_PROCID": "8"}, "SLURM_PROCID is 8 but SLURM_STEP_NUM_TASKS is 8"),
        ({"SLURM_PROCID": "x"}, "no number"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x2),2"}, "is 6 tasks on 3 hosts"),
        ({"SLURM_STEP_TASKS_PER_NODE": "four"}, "four"),
        ({"SLURM_STEP_NODELIST": "a[1-"}, "brackets"),
    ],
)
def test_contradictions_are_errors(change, needle):
    with pytest.raises(BadArgumentError) as caught:
        found(SLURM | change)
    assert needle in str(caught.value) and "SLURM" in str(caught.value) and "jhetcc.init(" in str(caught.value)


def test_torchrun():
    launch = found(TORCHRUN)
    assert (launch.process_id, launch.num_processes, launch.local_id, launch.coordinator) == (2, 4, 0, "head:29500")
    assert "MASTER_ADDR, MASTER_PORT" in launch.source
    assert found(TORCHRUN | {"MASTER_ADDR": "fe80::1"}).coordinator == "[fe80::1]:29500"


def test_torchrun_agent_keeps_its_own_port():
    agent = TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    first, again = found(agent), found(agent | {"TORCHELASTIC_RESTART_COUNT": "1"})
    assert first.coordinator.startswith("head:") and not first.coordinator.endswith(":29500")
    assert first.coordinator != again.coordinator
    assert first.coordinator == found(agent | {"RANK": "0"}).coordinator


def test_torchrun_without_master_is_an_error_and_half_of_it_is_ignored():
    with pytest.raises(BadArgumentError, match="MASTER_ADDR"):
        found({"RANK": "0", "WORLD_SIZE": "2"})
    assert found({"RANK": "0", "WORLD_SIZE": "1"}).num_processes == 1
    assert "RANK is set but not WORLD_SIZE" in found({"RANK": "3"}).source


def test_open_mpi_on_one_host():
    launch = found(OPEN_MPI)
    assert (launch.process_id, launch.num_processes, launch.local_id) == (1, 2, 1)
    assert launch.coordinator.startswith("127.0.0.1:") and launch.job == "openmpi-prterun-vm-6090@1"
    assert launch.coordinator != found(OPEN_MPI | {"PMIX_NAMESPACE": "prterun-vm-6091@1"}).coordinator


def test_open_mpi_on_several_hosts_asks_for_a_coordinator():
    several = OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    with pytest.raises(BadArgumentError, match="JHETCC_COORDINATOR"):
        found(several)
    assert found(several | {"JHETCC_COORDINATOR": "head:5000"}).coordinator == "head:5000"
    assert "from JHETCC_COORDINATOR" in found(several | {"JHETCC_COORDINATOR": "head:5000"}).source


def test_mpich():
    launch = found(MPICH)
    assert (launch.process_id, launch.num_processes, launch.local_id) == (1, 2, 1)
    assert launch.coordinator == found(MPICH | {"PMI_RANK": "0", "PMI_FD": "7"}).coordinator
    assert launch.coordinator != detect(MPICH, anchor=lambda: "999").coordinator
    with pytest.raises(BadArgumentError, match="JHETCC_COORDINATOR"):
        found(MPICH | {"MPI_LOCALNRANKS": "1"})


def test_anchor_is_the_session_leaders_parent():
    assert session_anchor().isdigit()
    if os.getsid(0) == os.getpid():
        assert session_anchor() == str(os.getppid())


def test_anchor_where_the_session_leader_is_outside_of_the_container(monkeypatch):
    monkeypatch.setattr(os, "getsid", lambda pid: 0)
    assert session_anchor() == "0"


def test_jobset():
    launch = found(JOBSET)
    assert (launch.process_id, launch.num_processes) == (6, 8)
    assert launch.coordinator.startswith("train-cuda-0-0.train:")
    assert (
        "is set but not JOB_COMPLETION_INDEX"
        in found({k: v for k, v in JOBSET.items() if k != "JOB_COMPLETION_INDEX"}).source
    )
    with pytest.raises(BadArgumentError, match="contradicts"):
        found(JOBSET | {"JOB_COMPLETION_INDEX": "4"})


def test_lone_process():
    launch = found({"HOME": "/"})
    assert (launch.process_id, launch.num_processes, launch.coordinator) == (0, 1, None)
    assert "no network" in launch.source


def test_order_of_precedence():
    ours = {"JHETCC_COORDINATOR": "127.0.0.1:5000", "JHETCC_PROCESS_ID": "1", "JHETCC_NUM_PROCESSES": "3"}
    everything = SLURM | MPICH | OPEN_MPI | TORCHRUN | JOBSET | ours
    assert found(everything, process_id=0, num_processes=2, coordinator="x:1").source.startswith(
        "arguments: process 0 of 2"
    )
    assert found(everything).source.startswith("JHETCC_* variables: process 1 of 3")
    without = {name: value for name, value in everything.items() if not name.startswith("JHETCC_")}
    assert found(without).launcher == "torchrun"
    assert found(SLURM | OPEN_MPI).launcher == "Open MPI", "daemons started by srun pass their SLURM numbers on"
    assert found(SLURM | {"PMI_RANK": "3", "PMI_SIZE": "8"}).launcher == "SLURM", (
        "the same numbers, but SLURM knows the hosts"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {"process_id": 1},
        {"num_processes": 2},
        {"process_id": 2, "num_processes": 2, "coordinator": "a:1"},
        {"process_id": 0, "num_processes": 2},
        {"coordinator": "a:1"},
        {"process_id": 0, "num_processes": 2, "coordinator": "a"},
        {"process_id": 0, "num_processes": 2, "coordinator": "a:70000"},
        {"process_id": 0, "num_processes": 0},
    ],
)
def test_half_said_arguments_are_errors(arguments):
    with pytest.raises(BadArgumentError):
        found({}, **arguments)


def test_addresses():
    assert split_address("a.b:12") == ("a.b", 12)
    assert split_address("[::1]:12") == ("::1", 12)
    for bad in ("::1:12", "a:", ":1", "a:0", "a:x", ""):
        with pytest.raises(BadArgumentError, match="host:port"):
            split_address(bad)
    assert all(is_loopback(host) for host in ("localhost", "127.0.1.1", "::1", "LOCALHOST"))
    assert not any(is_loopback(host) for host in ("10.0.0.1", "head", "fe80::1"))


def test_loopback_coordinator_of_several_hosts_is_refused():
    with pytest.raises(BadArgumentError) as caught:
        refuse_loopback("localhost:5000", ["a", "b", "a"])
    assert "loopback" in str(caught.value) and "2 hosts (a, b)" in str(caught.value)
    assert caught.value.code == "loopback_coordinator"
    refuse_loopback("localhost:5000", ["a", "a"])
    refuse_loopback("10.0.0.1:5000", ["a", "b"])
    refuse_loopback(None, ["a", "b"])
    with pytest.raises(BadArgumentError, match="loopback"):
        found(SLURM, coordinator="127.0.0.1:5000")
