# SPDX-License-Identifier: Apache-2.0
"""verbs on real libibverbs, in QEMU guests with soft-RoCE adapters: README.md. Two boots serve all tests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import jhetcc

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROGRAMS = ROOT / "build/tests/release/cc/tests"
LAB = HERE / "lab.sh"

pytestmark = pytest.mark.timeout(480)


def run_in_guests(directory, hosts, seconds, command):
    """Each host's output; fails the test with all of it where a command failed."""
    asked = [str(LAB), "run", "-H", str(hosts), "-n", "2", "-t", str(seconds), "--", "bash", "-c", command]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JHETCC_")} | {"LAB_DIR": str(directory)}
    done = subprocess.run(asked, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds + 60)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return [part.partition("\n")[2] for part in done.stdout.split("--- host ")[1:]]


@pytest.fixture(scope="module")
def lab():
    if os.environ.get("RDMA_LAB") == "no":
        pytest.skip("RDMA lab: left out by RDMA_LAB=no")
    found = subprocess.run([str(LAB), "found"], capture_output=True, text=True)
    if found.returncode != 0:
        pytest.skip(found.stdout.strip())


@pytest.fixture(scope="module")
def suite(lab, tmp_path_factory):
    """One guest, two adapters: the C++ programs."""
    for program in ("lab_verbs", "test_runtime"):
        if not (PROGRAMS / program).exists():
            pytest.skip(f"RDMA lab: {program} is not built: make cpp-test")
    command = f"""
export LAB_ADDRESSES='10.9.0.1 10.9.1.1'
{PROGRAMS}/lab_verbs; first=$?
{PROGRAMS}/test_runtime -tc='every schedule between work of a stream*'; second=$?
exit $((first | second))"""
    return run_in_guests(tmp_path_factory.mktemp("suite"), 1, 400, command)[0]


def passed(output):
    """How many test cases of each program passed."""
    return [
        int(line.split("|")[1].split()[0]) for line in output.splitlines() if line.startswith("[doctest] test cases")
    ]


@pytest.fixture(scope="module")
def job(lab, tmp_path_factory):
    """Two guests, two adapters each, one process a guest: what they told, by host and phase."""
    python = (
        f"PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={Path(jhetcc.__file__).parents[1]} JAX_PLATFORMS=cpu {sys.executable}"
    )
    output = run_in_guests(tmp_path_factory.mktemp("job"), 2, 300, f"{python} {HERE}/guest_job.py")
    told = []
    for each in output:
        phases = {}
        for line in each.splitlines():
            if line.startswith('{"phase"'):
                one = json.loads(line)
                phases.setdefault(one["phase"], []).append(one)
        told.append(phases)
    return told


def test_the_suite_of_all_transports_passes_over_real_queue_pairs(suite):
    assert passed(suite)[0] >= 60, suite[-3000:]


def test_operations_on_the_virtual_accelerator_go_by_registered_memory_without_a_detour(suite):
    assert passed(suite)[1] == 1, suite[-3000:]


def test_collectives_inside_jit_use_both_adapters_of_both_hosts(job):
    for phases in job:
        (told,) = phases["values"]
        assert len(told["paths"]) == 2
        for path in told["paths"]:
            assert path["sent_bytes"] > 0
            assert path["received_bytes"] > 0


def test_an_adapter_that_is_lost_and_comes_back_costs_nothing_but_time(job):
    for phases in job:
        assert [told["way"] for told in phases["link"]] == ["link", "link", "hole"]
        for told in phases["link"]:
            assert told["hit"] == [1]
            before, lost, after = told["before"], told["lost"], told["after"]
            assert before[1]["sent_bytes"] > 0
            assert lost[1]["state"] == "lost"
            assert lost[1]["losses"] > before[1]["losses"]
            assert lost[0]["sent_bytes"] > before[0]["sent_bytes"]  # the work went on over the other
            # The other path may be left now and then: a guest that gets no processor for 200 ms does not answer.
            assert sum(after[1][way] - lost[1][way] for way in ("sent_bytes", "received_bytes")) > 0


def test_lost_packets_are_the_adapters_business(job):
    (told,) = job[0]["lossy"]
    assert told["dropped"] > 0
    assert told["aborts"] == 0


def test_a_link_that_is_the_only_one_ends_the_operation_on_both_sides_soon_and_says_why(job):
    for phases in job:
        (told,) = phases["alone"]
        assert told["kind"] == "PeerLostError"
        assert told["seconds"] < 10
        assert "verbs rank" in told["text"]
    told = job[0]["alone"][0]["text"]
    assert (
        "verbs rank 0 -> rank 1 10.9.0.1 -> 10.9.0.2 by rxe0: no answer from the other end's adapter after 6 retries"
        in told
    )
    assert "JHETCC_TRANSPORT=tcp goes without" in told
    assert "the port of rxe0 is down" in job[1]["alone"][0]["text"]


CELLS = "nic_down:middle,black_hole:first,address_removed:last,loss:middle,peer_killed:middle,nothing:middle,corrupted:middle"


@pytest.fixture(scope="module")
def menu(lab, tmp_path_factory):
    """Cells of the fault menu between two guests: the bench's exit code, its rows by fault, and what it printed."""
    path = tmp_path_factory.mktemp("menu") / "rows.jsonl"
    command = [sys.executable, str(ROOT / "bench" / "faults.py"), "--verbs", "--cells", CELLS, "--seed", "3"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JHETCC_")}
    done = subprocess.run(
        [*command, "--json", str(path)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=420
    )
    told = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return done.returncode, {row["fault"]: row for row in told}, done.stdout[-6000:] + done.stderr[-2000:]


def test_faults_at_chosen_moments_change_no_bit(menu):
    _, rows, output = menu
    for name in ("nic_down", "black_hole", "address_removed", "loss", "peer_killed"):
        assert rows[name]["outcome"] == "passed", output
    for name in ("nic_down", "black_hole", "address_removed"):
        row = rows[name]
        assert row["bytes_before"] >= 8192 and row["bytes_after"] <= 4096
        assert row["lost_ms"] <= 1e3 * row["seconds"]


def test_the_menu_says_no_where_nothing_was_hit_or_a_bit_is_wrong(menu):
    code, rows, output = menu
    assert code == 1, output
    assert rows["nothing"]["outcome"] == "inconclusive" and "was not lost" in rows["nothing"]["why"], output
    assert rows["corrupted"]["outcome"] == "failed" and "1 wrong elements" in rows["corrupted"]["why"], output
