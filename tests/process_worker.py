# SPDX-License-Identifier: Apache-2.0
"""The program of one pooled test process: takes cases over its connection and calls them; see processes.py.

``say`` and ``hear`` are for cases. JAX is imported only where a case or the grouping needs it.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import os
import pickle
import signal
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

_PR_SET_PDEATHSIG = 1
connection: Connection
place: dict[str, Any] = {}


def say(word: Any) -> None:
    """Tells the test that this point was reached."""
    sys.modules["__main__"].connection.send(("word", word))


def hear() -> Any:
    """Waits for the test's word."""
    kind, word = sys.modules["__main__"].connection.recv()
    assert kind == "word", kind
    return word


def here() -> dict[str, Any]:
    """Arguments of ``init()`` for this process: for cases that join by themselves."""
    return dict(sys.modules["__main__"].place)


@contextlib.contextmanager
def joined_by_loopback() -> Iterator[None]:
    """For hosts that a test imagines: they do reach each other by loopback, which is refused between real ones."""
    from jhetcc.world import connecting, rendezvous

    kept = connecting.ways, connecting._refuse_loopback, rendezvous.refuse_loopback
    connecting.ways = lambda low, high, *, same_host, per_nic: kept[0](low, high, same_host=True, per_nic=per_nic)
    connecting._refuse_loopback = rendezvous.refuse_loopback = lambda *arguments: None
    try:
        yield
    finally:
        connecting.ways, connecting._refuse_loopback, rendezvous.refuse_loopback = kept


def until_error(call: Any) -> tuple[Exception, float]:
    """Repeats a call until it raises; returns the error and the seconds of the last call."""
    import jhetcc

    while True:
        begun = time.monotonic()
        try:
            call()
        except jhetcc.Error as error:
            return error, time.monotonic() - begun


def current() -> Any:
    """The world of this process, or None."""
    state = sys.modules.get("jhetcc.world.state")
    return state.current() if state else None


def _renew(renew: dict[str, Any]) -> None:
    import jhetcc

    if (world := current()) is not None:
        world.close()
    for name in [name for name in os.environ if name.startswith("JHETCC_")]:
        del os.environ[name]
    os.environ.update(renew["options"])
    place["coordinator"] = renew["coordinator"]
    if renew["join"]:
        jhetcc.init(**place)


def _call(task: tuple) -> tuple:
    module, name, arguments, where, renew = task
    begun = time.monotonic()
    try:
        place.update(where)
        if renew is not None:
            _renew(renew)
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        world = current()
        if world is not None and (renew is None or renew["join"]):
            from jhetcc.world import state

            arguments = (state.communicator("world"), *arguments)
        begun = time.monotonic()
        value, error = function(*arguments), None
    except SystemExit:
        raise
    except BaseException as why:
        value, error = None, why
        why.__notes__ = [*getattr(why, "__notes__", []), f"in process {place.get('process_id')}"]
    return value, error, begun, time.monotonic()


def _send(value: Any, error: BaseException | None, begun: float, ended: float) -> None:
    import traceback

    if error is not None:
        text = "".join(traceback.format_exception(error))
        print(text, file=sys.stderr, flush=True)
        portable: BaseException = error
        try:
            fields = dict(vars(error))
            fields.pop("__notes__", None)
            again = pickle.loads(pickle.dumps(error))
            assert vars(again).keys() >= fields.keys()
        except Exception:
            from processes import Failure

            portable = Failure(f"process {place.get('process_id')}: {type(error).__name__}: {error}", text)
        portable.__cause__ = portable.__context__ = None
        portable = portable.with_traceback(None)
        with contextlib.suppress(Exception):
            portable.add_note(text)
        error = portable
    connection.send(("done", value, error, begun, ended))


def main() -> None:
    global connection
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    connection = Connection(int(sys.argv[1]))
    while True:
        try:
            kind, data = connection.recv()
        except EOFError:
            os._exit(0)
        except KeyboardInterrupt:
            continue  # came after the case it was meant for
        if kind == "task":
            _send(*_call(pickle.loads(data)))


if __name__ == "__main__":
    main()
