# SPDX-License-Identifier: Apache-2.0
"""Where processes are: addresses told to peers, devices under a launcher; and jobs that end as soon as they begin."""

import contextlib
import secrets
import socket

import numpy as np
import pytest
from process_worker import current, here
from processes import run_scripts

import jhetcc
from jhetcc.errors import ResourceError
from jhetcc.launch.port import HeldPort
from jhetcc.world.detect import is_loopback
from jhetcc.world.launchers import derived_port

# Addresses

BY_NAME = """
import jhetcc
try:
    jhetcc.init(devices=1, timeout=20)
except jhetcc.Error as error:
    print(type(error).__name__, error)
    raise SystemExit(5)
"""


def test_an_interface_that_is_not_there():
    """C091: at once, by name, with what there is."""
    results = run_scripts(BY_NAME, extra={"JHETCC_INTERFACE": "nosuch0"})
    for code, output, seconds in results:
        assert code == 5 and seconds < 15, output
    told = [
        output for _, output, _ in results if "no usable interface 'nosuch0'" in output and "lo 127.0.0.1/8" in output
    ]
    assert told, results


def test_a_part_of_a_name_is_no_interface():
    """C092: names are exact, unless a * is written."""
    for code, output, _ in run_scripts(BY_NAME, extra={"JHETCC_INTERFACE": "l"}):
        assert code == 5 and "no usable interface 'l'" in output, output
    for spec in ("l*", "127.0.0.0/8"):
        for code, output, _ in run_scripts(BY_NAME, extra={"JHETCC_INTERFACE": spec}):
            assert code == 0 and not output, output


def own_address():
    """An address of this machine that is not loopback, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return probe.getsockname()[0]


def case_advertised(address, key):
    """The own host name means loopback here, as it does on machines whose /etc/hosts has 127.0.1.1."""
    kept, socket.gethostname = socket.gethostname, lambda: "localhost"
    try:
        place = here() | {"coordinator": address, "secret": key}
        comm = jhetcc.init(**place)
    finally:
        socket.gethostname = kept
    assert comm.all_reduce(np.array(1)) == 2
    return [nic.host for member in current().members for nic in member.nics]


@pytest.mark.skipif(own_address() is None, reason="this machine has loopback only")
def test_peers_are_told_the_address_that_reaches_them(pools):
    """C095: what the own host name resolves to is never told; the address is the one the coordinator is reached from."""
    with contextlib.closing(HeldPort(own_address())) as port:
        for outcome in pools(1, 1).attempt(
            case_advertised, port.address, secrets.token_hex(32), world=False, options={"JHETCC_TRANSPORT": "tcp"}
        ):
            assert own_address() in outcome.get() and not any(is_loopback(told) for told in outcome.get()), (
                outcome.value
            )


# Devices under a launcher

UNDER_SLURM = """
for name in [name for name in os.environ if name.startswith("JHETCC_")]:
    del os.environ[name]
import jax, jhetcc, numpy
comm = jhetcc.init()
assert comm.size == 3 and len(comm.devices) == 2 - me and comm.devices[0].id == 0, comm.devices
assert comm.local_ranks == ((0, 1), (2,))[me]
ones = [numpy.ones(1)] * 2
assert (comm.all_reduce(ones) if me == 0 else [comm.all_reduce(ones[0])])[0] == 3
comm.close()
comm = jhetcc.init(devices=jax.local_devices()[:1])
assert comm.size == 2 and comm.all_reduce(numpy.array(1)) == 2
"""


def job_with_a_port():
    """The number of a SLURM job whose derived port is nobody's, and that port."""
    while True:
        job = str(secrets.randbelow(10**6))
        with contextlib.suppress(ResourceError):
            return job, HeldPort(port=derived_port(f"slurm {job}.0"))


def test_devices_of_tasks():
    """C116, C117: a task takes all devices it sees, from number 0, whatever its local number; or those it is given."""
    job, port = job_with_a_port()
    slurm = {
        "SLURM_JOB_ID": job, "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_TASKS_PER_NODE": "2",
    }  # fmt: skip
    own = [{"SLURM_PROCID": str(k), "SLURM_LOCALID": str(k)} for k in range(2)]
    with contextlib.closing(port):
        for code, output, _ in run_scripts(UNDER_SLURM, (2, 1), extra=slurm, own=own):
            assert code == 0, output


# Short lives

AT_ONCE = "import jhetcc\njhetcc.init(devices=1)\n"

UNFINISHED = """
import jhetcc
from jhetcc.world.rendezvous import Rendezvous
if me == 0:
    Rendezvous.finish = lambda self: os._exit(3)
try:
    jhetcc.init(devices=1, timeout=20)
except jhetcc.Error as error:
    print(type(error).__name__, error)
    raise SystemExit(5)
"""


def test_a_job_that_ends_at_once():
    """C067: process 0 may be gone before the others have read that all are ready; they go on."""
    for _ in range(4):
        for code, output, _ in run_scripts(AT_ONCE, (1, 1, 1)):
            assert code == 0 and not output, output


def test_a_world_that_could_not_be_made_ends_its_threads():
    """C060, C071: init() fails late; the exit code is the user's and nothing crashes."""
    (first, *_), (second, output, seconds) = run_scripts(UNFINISHED)
    assert first == 3 and second == 5 and seconds < 15, output
    assert "PeerLostError" in output and "terminate" not in output, output
