"""The C++ core. Private: use the functions of the package."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


def begin_exit() -> None:
    """
    The interpreter ends: other threads that are in a call of this module never come back from it.
    """

class Process:
    """This process's part of a job."""

    def __init__(self, options: dict, world_ranks: Sequence[int], ordinals: Sequence[int]) -> None: ...

    def add_local_pair(self, slot_a: int, slot_b: int) -> None: ...

    def start(self) -> None: ...

    def create_communicator(self, name: str, epoch: int, world_ranks: Sequence[int], places: Sequence[str]) -> None: ...

    def destroy_communicator(self, name: str) -> None: ...

    def answer_plan(self, communicator: str, epoch: int, text: str, schedules: Sequence[tuple[int, bytes]], failure: str | None = None) -> None: ...

    def has_plan(self, communicator: str, text: str) -> bool: ...

    def next_plan_request(self, timeout: float) -> object: ...

    def abort(self, communicator: str, reason: str, code: str = 'aborted') -> None: ...

    def verdict(self, communicator: str) -> object: ...

    def shrink(self, communicator: str, timeout: float) -> object: ...

    def status(self) -> list: ...

    def counters(self) -> list: ...

    @property
    def operations_failed(self) -> int: ...

    def records(self) -> list: ...

    def close(self, timeout: float) -> None: ...

class RawCall:
    """
    One operation on one communicator, ready for blocking calls; fails once that was closed.
    """

    def run(self, buffers: Sequence[tuple[int, int, int, int]]) -> None:
        """A tuple for each local rank: address and bytes of input and output."""

    def run_one(self, input: object | None, output: object | None) -> bool:
        """
        For one local rank, on objects with contiguous buffers or None. False: a buffer does not fit, nothing was done.
        """

def raw_call(process: Process, communicator: str, text: str) -> RawCall: ...

class Secret:
    def __init__(self, bytes: bytes | None, allow_insecure: bool) -> None: ...

class Identity:
    def __init__(self, job: str, process_id: int, incarnation: int) -> None: ...

class Encryption:
    def __init__(self, secret: Secret, job: str) -> None: ...

class StoreServer:
    def __init__(self, address: str, secret: Secret, identity: Identity, encryption: Encryption | None) -> None: ...

    @property
    def address(self) -> str: ...

class StoreClient:
    def __init__(self, address: str, secret: Secret, identity: Identity, encryption: Encryption | None, timeout: float) -> None: ...

    @property
    def local_address(self) -> str: ...

    def set_if_absent(self, key: str, value: str, timeout: float) -> str | None: ...

    def will(self, key: str, value: str, timeout: float) -> None: ...

    def try_get(self, key: str, timeout: float) -> str | None: ...

    def list(self, prefix: str, timeout: float) -> list[str]: ...

class Acceptor:
    def __init__(self, address: str, secret: Secret, identity: Identity) -> None: ...

    @property
    def address(self) -> str: ...

def accept_endpoint(acceptor: Acceptor, process: Process, slot: int, peer: int, peer_process: int, peer_slot: int, allow_cma: bool, timeout: float, store: StoreClient, ended_key: str) -> None: ...

def connect_endpoint(address: str, secret: Secret, identity: Identity, process: Process, slot: int, peer: int, peer_process: int, peer_slot: int, allow_cma: bool, timeout: float, store: StoreClient, ended_key: str) -> None: ...

def choose_nics(interface: str, towards: str) -> list[tuple[str, str, int, int, bool, bool]]:
    """
    The NICs named, or those that lead out of this machine: (interface, host, prefix length, Mbit/s or 0, whether it shares its subnet, whether sockets are bound to its interface) each.
    """

def rdma_device(host: str) -> str:
    """
    The RDMA device of this local address, tried out; an error says why not.
    """

class Paths:
    def __init__(self, nics: Sequence[tuple[str, str, int, int, bool, bool]], secret: Secret, identity: Identity, encryption: Encryption | None) -> None: ...

    @property
    def addresses(self) -> list[str]: ...

    def connect(self, process: Process, pairs: Sequence[tuple[int, int, int, int, int, bool, Sequence[tuple[int, int, str, bool]]]], congestion: str, timeout: float, store: StoreClient, ended_key: str) -> None:
        """
        A pair: slot, peer, its process, incarnation and slot, whether this side calls, and (tier, NIC, address, whether by verbs) of each path.
        """

    @property
    def has_several(self) -> bool: ...

    def leave_behind(self, epoch: int, processes: Sequence[int]) -> None:
        """
        Gives these processes no connection any more, and says that this one is in that epoch.
        """

    def stop(self) -> None: ...

class Library:
    """A vendor's collective library, loaded."""

    def __init__(self, name: str, path: str, crowded: bool, interface: str, secret: Secret) -> None: ...

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def abortable(self) -> bool: ...

    @property
    def uniform(self) -> bool: ...

    @property
    def one_rank_a_process(self) -> bool: ...

    @property
    def refuses(self) -> list[tuple[int, int]]:
        """Pairs of a reduction and a type, by their numbers in schedules."""

def use_library(process: Process, library: Library, world_ranks: Sequence[int], world_rank: int, store: StoreClient, job: str, ended_key: str, timeout: float) -> None: ...

def reduce(target: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], sources: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]], dtype: int, op: int, divisor: int = 0) -> None:
    """
    Reduce uint8 arrays, left to right, into target (which may be one of them). dtype and op are the numbers of
    the schedule's binary form; divisor divides a complete mean. Raises ValueError for a pair that does not exist.
    """

def copy_past_caches(target: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
    """
    Copy uint8 arrays by non-temporal stores, which leave the target out of the caches.
    """

def simd_name() -> str:
    """The instruction set of the reductions: avx512, avx2 or base."""

def set_simd(name: str) -> None:
    """
    Choose the instruction set: auto, base, avx2 or avx512. Raises ValueError where it is not present.
    """

def ffi_handlers() -> dict:
    """FFI handlers by target name."""

def ffi_api_version() -> tuple[int, int]:
    """(major, minor) of the XLA FFI headers the handlers were built with."""

def set_ffi_process(process: Process | None) -> None:
    """The process the handlers serve; None: they refuse."""

def set_log_spec(spec: str) -> None: ...

def pop_log_line() -> object:
    """The oldest line as (level, topic, text, repeats), or None."""
