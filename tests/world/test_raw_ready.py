# SPDX-License-Identifier: Apache-2.0
"""Raw calls seen before take a short way: it must take and refuse what the long one does, and end with the communicator."""

import ml_dtypes
import numpy as np
import pytest

import jhetcc
from jhetcc.errors import AbortedError, BadArgumentError, UnavailableError
from jhetcc.world import raw, state


@pytest.fixture
def comm():
    communicator = jhetcc.init(num_processes=1, devices=1)
    yield communicator
    communicator.close()


@pytest.fixture
def pair():
    communicator = jhetcc.init(num_processes=1, devices=2)
    yield communicator
    communicator.close()


@pytest.mark.parametrize(
    "dtype", [np.float32, np.int8, np.complex128, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, np.bool_]
)
def test_the_second_call_gives_what_the_first_gave(comm, dtype):
    given = np.arange(12).astype(dtype).reshape(3, 4)
    call = comm.broadcast if dtype is ml_dtypes.float8_e5m2 else comm.all_reduce
    arguments = {"root": 0} if call == comm.broadcast else {}
    first, second = call(given, **arguments), call(given, **arguments)
    for result in (first, second):
        assert result.dtype == given.dtype and result.shape == given.shape and (result == given).all()
    out = np.zeros_like(given)
    assert call(given, out=out, **arguments) is out and (out == given).all()
    assert call(given, out=given, **arguments) is given


@pytest.mark.parametrize(
    "given",
    [
        np.arange(24.0).reshape(2, 3, 4)[:, ::2],
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.float64(3.0),
        np.array(3.0),
        np.zeros((0, 3)),
        [[1.0, 2.0]],
    ],
    ids=["strided", "fortran", "scalar", "0-d", "empty", "list"],
)
def test_buffers_that_are_no_plain_arrays(comm, given):
    for _ in range(2):
        result = comm.all_reduce(given)
        result = result[0] if isinstance(result, list) else result
        assert (result == np.asarray(given)).all()


def test_outputs_that_do_not_fit_are_refused_again_and_again(comm):
    given = np.ones((2, 3), np.float32)
    comm.all_reduce(given)
    fixed = np.zeros_like(given)
    fixed.flags.writeable = False
    wrong = [np.zeros((3, 2), np.float32), np.zeros((2, 3)), np.zeros((2, 6), np.float32)[:, ::2], fixed, "text"]
    for out in wrong + wrong:
        with pytest.raises(BadArgumentError, match="out "):
            comm.all_reduce(given, out=out)
    assert not fixed.any()
    with pytest.raises(UnavailableError, match="stream"):
        comm.all_reduce(given, stream=object())


def test_shapes_of_results(pair):
    def both(shape):
        return [np.ones(shape), np.ones(shape)]

    for _ in range(2):
        assert [one.shape for one in pair.all_gather(both((3, 2)))] == [(2, 3, 2)] * 2
        assert [one.shape for one in pair.gather(both((3, 2)), root=0, lengths=(3, 1))] == [(4, 2)] * 2
        assert [one.shape for one in pair.reduce_scatter(both((2, 5)))] == [(5,)] * 2
        assert [one.shape for one in pair.scatter(both((4, 2)), root=1, lengths=(3, 1))] == [(3, 2)] * 2
        assert [one.shape for one in pair.all_to_all(both((2, 5)))] == [(2, 5)] * 2
        pair.barrier()


def test_arrays_of_objects_are_refused(comm):
    with pytest.raises(BadArgumentError, match="objects"):
        comm.broadcast(np.array([object(), None]), root=0)


def test_what_was_ready_ends_with_its_communicator(comm):
    given = np.ones(4)
    half = comm.split(0, name="half")
    half.all_reduce(given)
    half.all_reduce(given)
    half.close()
    with pytest.raises(AbortedError, match="closed") as caught:
        half.all_reduce(given)
    assert caught.value.code == "closed"
    again = comm.split(0, name="half")
    assert (again.all_reduce(given) == given).all()
    with pytest.raises(AbortedError, match="closed"):
        half.all_reduce(given)
    comm.all_reduce(given)
    comm.close()
    with pytest.raises(AbortedError, match="closed"):
        comm.all_reduce(given)


def test_shrinking_replaces_what_was_ready(comm):
    given = np.ones(4)
    comm.all_reduce(given)
    shrunk = comm.shrink(timeout=10)
    assert (shrunk.all_reduce(given) == given).all()
    with pytest.raises(AbortedError, match="closed"):
        comm.all_reduce(given)
    shrunk.close()


def test_calls_kept_ready_are_bounded(comm, monkeypatch):
    monkeypatch.setattr(raw, "_READY_MAX", 8)
    for length in range(40):
        assert comm.all_reduce(np.ones(length)).shape == (length,)
        assert len(comm._ready) <= 8


def test_scalars_keep_their_shape(comm):
    for scalar in (np.array(3.0), np.float32(3), 3.0, 3, True):
        result = comm.all_reduce(scalar)
        assert result.shape == () and result == scalar


def test_an_axis_that_never_was_is_not_called_closed(comm):
    comm.split(0, name="half").close()
    with pytest.raises(AbortedError, match="'half' was closed") as caught:
        state.communicator("half")
    assert caught.value.code == "closed"
    with pytest.raises(
        BadArgumentError, match=r"no axis or communicator 'wrold': this process has .*'world'"
    ) as caught:
        state.communicator("wrold")
    assert caught.value.code == "axis_name"
