# SPDX-License-Identifier: Apache-2.0
"""Strangers, thieves and impostors knock at a job while it works and while it gathers: results stay exact, and the log short."""

import contextlib
import re
import secrets
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time

import attacks
import numpy as np
import pytest
from process_worker import hear, here, say

import jhetcc

KEY = secrets.token_hex(32)
TLS = ["control", "all", "off"]
FLOOD_ROUNDS = 30
SLOW_EACH = 20


def options(tls):
    """Several paths: then a job listens for data as long as it lives."""
    return {"JHETCC_SECRET": KEY, "JHETCC_TLS": tls, "JHETCC_TRANSPORT": "tcp", "JHETCC_PATHS_PER_NIC": "2"}


def works(comm):
    """Sums of every size until process 0 hears that it is enough; how many were right, and all must be."""
    connection = sys.modules["__main__"].connection
    rounds = 0
    while True:
        stop = int(comm.rank == 0 and connection.poll())
        if comm.all_reduce(np.array(stop)):
            break
        for count in (1, 5_000, 300_000):
            mine = np.arange(count, dtype=np.float64) + 1000 * comm.rank + rounds
            assert np.array_equal(comm.all_reduce(mine), 2 * (np.arange(count) + rounds) + 1000.0), (rounds, count)
        rounds += 1
        if rounds == 3:
            say(here()["coordinator"])
    if comm.rank == 0:
        hear()
    return rounds


def case_works(comm):
    return works(comm)


@contextlib.contextmanager
def working(pools, tls):
    """A job of two that sums all the while; afterwards all its sums were right, and there were some meanwhile."""
    running = pools(1, 1).start(case_works, options=options(tls))
    coordinator = running.word(0)
    running.word(1)
    yield running, coordinator
    running.tell(0)
    rounds = [outcome.get() for outcome in running.finish()]
    assert rounds[0] == rounds[1] > 3


def case_paths(comm):
    """How this process's rank is connected, while that works."""
    for count in (1, 5_000, 1_000_000):
        got = comm.all_reduce(np.arange(count, dtype=np.float64) + comm.rank)
        assert np.array_equal(got, 2.0 * np.arange(count) + 1)
    return list(comm.status()["ranks"][0]["paths"].values())


@pytest.mark.parametrize("tls", TLS)
def test_data_is_encrypted_where_that_is_asked_for(pools, tls):
    for paths in pools(1, 1).run(case_paths, options=options(tls) | {"JHETCC_PATHS_PER_NIC": "1"}):
        assert len(paths) == 1 and paths[0].startswith("tcp ")
        assert paths[0].endswith(" TLS") == (tls == "all"), paths


def told(output):
    """The log's lines about strangers."""
    return re.findall(r"turned (?:a stranger|\d+ strangers) away.*", output)


def lines_in(begun, listeners):
    """How many lines a process may have logged since then: each listener the first at once, then one every 10 s."""
    return listeners * (2 + (time.monotonic() - begun) / 10)


def places(running):
    found = [place for index in (0, 1) for place in attacks.listeners(running.pid(index))]
    assert len(found) >= 3  # the coordinator's, and one for data in each process
    return found


@pytest.mark.parametrize("tls", TLS)
def test_scanners_noise_and_slow_callers_at_a_working_job(pools, tls):
    """Hundreds of strangers of every sort, and slow ones all the while, at every address where the job listens."""
    begun = time.monotonic()
    with working(pools, tls) as (running, _), contextlib.closing(attacks.Slow(places(running), SLOW_EACH)):
        strangers = sum(attacks.knock(place, FLOOD_ROUNDS) for place in places(running))
        assert strangers >= 9 * FLOOD_ROUNDS
        running.see(0, "turned a stranger away at ")
    lines = told(running.outcomes[0].output)
    assert "127.0.0.1:" in lines[0] and len(lines) <= lines_in(begun, listeners=3), lines
    for outcome in running.outcomes:
        assert KEY not in outcome.output and len(outcome.output) < 5000, outcome.output


@pytest.mark.parametrize("tls", TLS)
def test_impostors_at_a_working_job(pools, tls):
    """A process with another key, with none, with the right key and a number that is taken, and one that disagrees on TLS."""
    begun = time.monotonic()
    with working(pools, tls) as (running, coordinator):
        other = "control" if tls == "off" else "off"
        for settings, word in [
            ({"JHETCC_SECRET": secrets.token_hex(32), "JHETCC_TLS": tls}, "secret_mismatch"),
            ({}, "secret_missing"),
            ({"JHETCC_SECRET": KEY, "JHETCC_TLS": tls}, "duplicate_process"),
            ({"JHETCC_SECRET": KEY, "JHETCC_TLS": tls, "JHETCC_JOB": "other"}, "job_mismatch"),
            ({"JHETCC_SECRET": KEY, "JHETCC_TLS": other}, "tls_mismatch"),
        ]:
            code, output = attacks.intrude(coordinator, 1, **settings)
            assert code == 5 and word in output, (settings.keys(), output)
            assert KEY not in output
        running.see(0, "turned a stranger away at ")
    assert len(told(running.outcomes[0].output)) <= lines_in(begun, listeners=3)


def test_places_of_others_claimed_on_data_ports(pools):
    """Who knows the secret but is not the process that joined gets no path of it, whatever number and generation he claims."""
    with working(pools, "off") as (running, coordinator):
        port = int(coordinator.rpartition(":")[2])
        doors = [place for place in attacks.listeners(running.pid(0)) if place.address != ("127.0.0.1", port)]
        assert doors
        for door in doors:
            for path in (0, 1):
                assert attacks.claim(door, KEY, attacks.Claim(path=path)) == (0, "")
            assert attacks.claim(door, KEY, attacks.Claim(rank=7, generation=2**32 - 1)) == (0, "")
            code, why = attacks.claim(door, KEY, attacks.Claim(job="other"))
            assert code == 1 and "belongs to job 'other'" in why
        running.see(0, "closed a connection that joins no ranks of this job")


def case_tapped(address):
    """Joins, process 1 by an address where somebody listens in; then works."""
    place = here()
    if place["process_id"] == 1:
        place["coordinator"] = address
    return works(jhetcc.init(**place))


@pytest.mark.parametrize("tls", TLS)
def test_what_was_heard_on_the_wire_opens_nothing(pools, tls):
    """The whole of an honest process's words, its handshake alone and what followed, said again by somebody else."""
    pool = pools(1, 1)
    pool.renew()
    running = pool.start(case_waits_for_address, world=False, options=options(tls))
    host, port = running.word(0).split(":")
    running.word(1)
    with contextlib.closing(attacks.Tap((host, int(port)))) as tap:
        running.tell(0, tap.address)
        running.tell(1, tap.address)
        running.word(0, 1)
        running.word(1, 1)
        said = bytes(max(tap.said, key=len))
        assert len(said) > 500
        if tls != "off":
            assert b"process/1" not in said and b"JHN1" not in said
        else:
            assert b"process/1" in said and said.startswith(b"JHN1")
        places = [place for index in (0, 1) for place in attacks.listeners(running.pid(index))]
        for place in places:
            for data in (said, said[300:], said[-200:]):
                answer = attacks.replay(place, data)
                assert len(answer) < 2000 and b"process/" not in answer
        running.tell(0)
        rounds = [outcome.get() for outcome in running.finish()]
    assert rounds[0] == rounds[1] >= 3
    pool.renew()


def case_waits_for_address():
    say(here()["coordinator"])
    return case_tapped(hear())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
def test_a_false_coordinator_with_a_certificate(tmp_path):
    """Whoever answers at the coordinator's address must prove the key; a certificate proves nothing here."""
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1"]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(attacks.SECONDS)

        def serve():
            with contextlib.suppress(TimeoutError):
                meet(listener.accept()[0])

        def meet(caller):
            caller.settimeout(attacks.SECONDS)
            with contextlib.suppress(OSError), context.wrap_socket(caller, server_side=True) as client:
                heard.append(client.recv(65536))

        thread = threading.Thread(target=serve)
        thread.start()
        settings = {"JHETCC_SECRET": KEY, "JHETCC_TLS": "control"}
        code, output = attacks.intrude(f"127.0.0.1:{listener.getsockname()[1]}", 1, **settings)
        thread.join()
    assert code == 5 and "secret_mismatch" in output, output
    assert heard in ([], [b""])


@pytest.mark.parametrize("tls", TLS)
def test_strangers_while_the_job_gathers(pools, tls):
    """Process 0 waits for process 1, and listens for data as well; all its addresses are attacked before the other one comes."""
    begun = time.monotonic()
    pool = pools(1, 1)
    pool.renew()
    running = pool.start(case_gathers, world=False, options=options(tls))
    running.expect(0, 1, word="here")
    running.tell(0)
    places = []
    while len(places) < 3:  # coordinator, tcp, unix
        running.linger(0.01)
        places = attacks.listeners(running.pid(0))
    for place in places:
        attacks.knock(place, 3)
    with contextlib.closing(attacks.Slow(places, SLOW_EACH)):
        running.tell(1)
        running.word(0, 1)
        running.word(1, 1)
        running.tell(0)
        rounds = [outcome.get() for outcome in running.finish()]
    assert rounds[0] == rounds[1] >= 3
    lines = told(running.outcomes[0].output)
    named = {
        found[1] for found in map(re.compile(r"away at (\S+): ").search, lines) if found
    }  # one may have come later
    assert 1 <= len(lines) <= lines_in(begun, max(len(places), len(named))), lines
    pool.renew()


def case_gathers():
    say("here")
    hear()
    return works(jhetcc.init(**here()))
