# SPDX-License-Identifier: Apache-2.0
"""Operations: the text and its one form, sizes, hashes, refusals."""

from __future__ import annotations

import pytest

from jhetcc.schedule import Operation, fnv1a, item_size

TEXTS = [
    ("psum(f32[8,4])", 128, 128),
    ("pmean(bf16[])", 2, 2),
    ("reduce(i32[3], op=max, root=1)", 12, 12),
    ("all_gather(f32[3])", 12, 36),
    ("all_gather(f32[5,2], lengths=3;0;5)", 40, 64),
    ("gather(c128[2], root=2)", 32, 96),
    ("gather(b24[5], root=0, lengths=3;0;5)", 15, 24),
    ("psum_scatter(f64[3,2])", 48, 16),
    ("psum_scatter(f64[3,2], op=min)", 48, 16),
    ("all_to_all(u8[3,7])", 21, 21),
    ("scatter(f16[3,4], root=0)", 24, 8),
    ("scatter(f16[8,4], root=0, lengths=3;0;5)", 64, 40),
    ("ppermute(bool[4], perm=0>1;1>2)", 4, 4),
    ("ppermute(i8[4], perm=)", 4, 4),
    ("broadcast(u64[2,0], root=2)", 0, 0),
    ("barrier()", 0, 0),
    ("send(f32[4], to=1, tag=7)", 16, 0),
    ("recv(f32[4], from=1, tag=7)", 0, 16),
    ("sendrecv(f32[4], to=1, from=2, tag=0)", 16, 16),
]


@pytest.mark.parametrize(("text", "input_bytes", "output_bytes"), TEXTS)
def test_text_and_sizes(text, input_bytes, output_bytes):
    operation = Operation.parse(text)
    operation.check(3)
    assert operation.text() == text
    assert Operation.parse(operation.text()) == operation
    assert operation.input_bytes(3) == input_bytes
    assert operation.output_bytes(3) == output_bytes
    assert operation.fingerprint() == fnv1a(text.encode())


def test_fnv1a_is_the_published_function():
    assert fnv1a(b"") == 0xCBF29CE484222325
    assert fnv1a(b"a") == 0xAF63DC4C8601EC8C
    assert fnv1a(b"foobar") == 0x85944171F73967E8


def test_a_sum_has_one_text():
    assert Operation.parse("psum_scatter(f32[2,1], op=sum)").text() == "psum_scatter(f32[2,1])"
    assert Operation("psum_scatter", "f32", (2, 1), op="sum") == Operation("psum_scatter", "f32", (2, 1))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "psum",
        "psum()",
        "barrier(f32[1])",
        "psum(f32)",
        "psum(f32[1],)",
        "psum(f32[1]) ",
        "psum(f32[01])",
        "psum(f32[1,])",
        "psum(f32[,1])",
        "psum(f32[-1])",
        "psum(f33[1])",
        "psum(b32[1])",
        "psum(f32[1], root=0)",
        "psum(f32[1], op=sum)",
        "all_gather(b4[8])",
        "all_gather(b0[8])",
        "pmax(c64[2])",
        "pmean(i32[2])",
        "pmean(bool[2])",
        "reduce(f32[1], root=0)",
        "reduce(f32[1], root=0, op=sum)",
        "reduce(f32[1], op=sum, root=0, root=0)",
        "reduce(f32[1], op=none, root=0)",
        "reduce(f32[1], op=avg, root=0)",
        "broadcast(f32[1], root=)",
        "broadcast(f32[1], root=x)",
        "ppermute(f32[1], perm=0>1>2)",
        "ppermute(f32[1], perm=0)",
        "send(f32[1], to=0, tag=4294967296)",
        "send(f32[1], to=0)",
        "nothing(f32[1])",
        "psum_scatter(f32[02,1], op=sum)",
    ],
)
def test_bad_texts_are_refused(text):
    with pytest.raises(ValueError):
        Operation.parse(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("broadcast(f32[1], root=3)", "root=3"),
        ("recv(f32[1], from=3, tag=0)", "from=3"),
        ("psum_scatter(f32[2,3])", "leading dimension must be 3"),
        ("all_to_all(f32[])", "leading dimension must be 3"),
        ("ppermute(f32[1], perm=0>3)", "destination"),
        ("ppermute(f32[1], perm=0>1;2>1)", "destination twice"),
        ("ppermute(f32[1], perm=0>1;0>2)", "source twice"),
        ("all_gather(f32[5], lengths=5;1)", "one number"),
        ("all_gather(f32[6], lengths=5;1;0)", "leading dimension is 5"),
        ("scatter(f32[5], root=0, lengths=5;1;0)", "leading dimension is 6"),
    ],
)
def test_operations_that_do_not_fit_three_ranks(text, why):
    with pytest.raises(ValueError, match=why):
        Operation.parse(text).check(3)


def test_item_sizes():
    assert [item_size(name) for name in ("bool", "bf16", "c128", "b8", "b24")] == [1, 2, 16, 1, 3]
