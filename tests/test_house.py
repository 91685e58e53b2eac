# SPDX-License-Identifier: Apache-2.0
"""Keeps the house: rooms and the arrows between them, sizes, licence lines, words, links, error codes."""

import ast
import logging
import re

import house
import pytest
from house import ROOT, files, sources, text

LINES_MAX, TEST_LINES_MAX, README_LINES_MAX, FUNCTION_LINES_MAX = 400, 500, 30, 60
FILE_BYTES_MAX = 500_000


def is_test(path):
    return path.parts[0] == "tests" or path.parts[:2] == ("cc", "tests")


def test_the_tree_is_seen():
    names = {str(path) for path in files()}
    assert {"jhetcc/errors.py", "cc/base/status.h", "Makefile"} <= names


def test_cpp_arrows_go_leftwards():
    wrong = []
    for path in sources(".h", ".cc", under="cc/"):
        if is_test(path):
            continue
        inside = str(path.relative_to("cc"))
        for included in house.cpp_includes(text(path)):
            if why := house.why_not(inside, included):
                wrong.append(f"{path}: {included}: {why}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("includer", "included", "good"),
    [
        ("engine/reduce.cc", "rail/rail.h", True),
        ("engine/reduce.cc", "transport/transport.h", True),
        ("rail/rail.cc", "engine/engine.h", False),
        ("net/socket.cc", "trace/ring.h", False),
        ("transport/shm/shm.cc", "transport/transport.h", True),
        ("transport/shm/shm.cc", "transport/tcp/tcp.h", False),
        ("transport/shm/shm.cc", "transport/shm/segment.h", True),
        ("rail/rail.cc", "transport/tcp/tcp.h", False),
        ("runtime/runtime.cc", "transport/tcp/tcp.h", True),
        ("ccl/load.cc", "ccl/oneccl/abi.h", False),
        ("ccl/mpi/world.cc", "ccl/adapter.h", True),
        ("ccl/mpi/world.cc", "ccl/oneccl/abi.h", False),
        ("ccl/mpi/world.cc", "control/store.h", False),
        ("engine/engine.cc", "ccl/library.h", True),
        ("base/clock.cc", "clock.h", False),
        ("transport/transport.cc", "transport/tcp/tcp.h", False),
        ("device/fake/device.cc", "device/device.h", True),
        ("device/fake/device.cc", "device/host/host.h", False),
        ("ccl/nccl/abi.cc", "ccl/library.h", True),
        ("ccl/nccl/abi.cc", "device/fake/fake.h", False),
        ("engine/engine.cc", "device/device.h", True),
        ("engine/engine.cc", "device/fake/fake.h", False),
        ("net/socket.cc", "device/device.h", False),
    ],
)
def test_the_arrow_check_itself(includer, included, good):
    assert (house.why_not(includer, included) is None) == good


def test_vendor_headers_stay_in_their_rooms():
    wrong = []
    for path in sources(".h", ".cc", under="cc/"):
        for header in re.findall(r"^\s*#\s*include\s+<([^>]+)>", text(path), re.MULTILINE):
            for pattern, room in house.VENDOR_HEADERS.items():
                if re.match(pattern, header) and path.parts[1] not in (room, "tests"):
                    wrong.append(f"{path}: <{header}> belongs to {room}")
    assert not wrong, "\n".join(wrong)


def test_python_arrows_go_leftwards(capfd):
    from importlinter.cli import lint_imports

    code = lint_imports(config_filename=str(ROOT / "pyproject.toml"), cache_dir=None)
    logging.getLogger("jhetcc").disabled = False  # it configures logging for its process, and this is ours
    assert code == 0, capfd.readouterr().out


def test_pure_rooms_know_no_core():
    wrong = [
        f"{path}: {node.lineno}"
        for room in ("planner", "schedule", "topology")
        for path in sources(".py", under=f"jhetcc/{room}/")
        for node in ast.walk(ast.parse(text(path)))
        if isinstance(node, ast.Import | ast.ImportFrom) and "_core" in ast.unparse(node)
    ]
    assert not wrong, "\n".join(wrong)


def test_names_private_to_jax_are_in_compat_alone():
    wrong = [
        f"{path}: {name}"
        for path in sources(".py", under="jhetcc/")
        if path.name != "compat.py"
        for name in house.jax_private_names(ast.parse(text(path)))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_private_name_check_itself():
    tree = ast.parse(
        "import jax._src.core\nfrom jax._src import x\nimport jaxlib\njax.core._y\njax.jit\nfrom jax.lax import psum\njax.__version__"
    )
    assert sorted(house.jax_private_names(tree)) == ["jax._src.core", "jax._src.x", "jax.core._y", "jaxlib"]


def test_every_room_has_a_short_readme():
    rooms = {path.parent for path in sources(".h", ".cc", under="cc/") if not is_test(path)}
    rooms |= {path.parent for path in sources(".py", under="jhetcc/") if path.parent.name != "jhetcc"}
    # A kind that is too small for a README of its own is described by its room's.
    missing = [
        str(room)
        for room in sorted(rooms)
        if not any((ROOT / place / "README.md").exists() for place in (room, *room.parents[:-2]))
    ]
    assert not missing, missing
    long = [
        str(path)
        for path in files()
        if path.name == "README.md" and len(path.parts) > 1 and len(text(path).splitlines()) > README_LINES_MAX
    ]
    assert not long, long


def test_files_and_functions_are_short():
    long = []
    for path in sources(".py", ".pyi", ".cc", ".h", ".sh"):
        lines = len(text(path).splitlines())
        if path.suffix != ".pyi" and lines > (TEST_LINES_MAX if is_test(path) else LINES_MAX):
            long.append(f"{path}: {lines} lines")
        if path.suffix == ".py":
            for name, length in house.function_lengths(ast.parse(text(path))):
                if length > FUNCTION_LINES_MAX:
                    long.append(f"{path}: {name} has {length} lines")
    assert not long, "\n".join(long)


def test_no_formatter_of_code_touched_a_page():
    """It takes a page for C++: the space after the heading's # goes, and lists become paragraphs."""
    wrong = [str(path) for path in sources(".md") if not text(path).startswith("# ")]
    assert not wrong, wrong


def test_no_big_files():
    big = [str(path) for path in files() if (ROOT / path).stat().st_size > FILE_BYTES_MAX]
    assert not big, big


def test_spdx_line_comes_first():
    wanted = ("# SPDX-License-Identifier: Apache-2.0", "// SPDX-License-Identifier: Apache-2.0")
    wrong = []
    for path in sources(".py", ".cc", ".h", ".sh"):
        lines = text(path).splitlines()
        if lines and lines[0].startswith("#!"):
            lines = lines[1:]
        if lines and lines[0] not in wanted:
            wrong.append(str(path))
    assert not wrong, wrong


def test_sources_say_their_job():
    wrong = [
        str(path)
        for path in sources(".py", under="jhetcc/")
        if text(path).strip() and not ast.get_docstring(ast.parse(text(path)))
    ]
    assert not wrong, wrong


# Of the words the glossary rules out, those that mean nothing else in prose.
RULED_OUT = re.compile(r"\b(workers?|gateways?|hetero|homo|op graph)\b", re.IGNORECASE)


def test_prose_uses_the_glossarys_words():
    wrong = []
    for path in sources(".md"):
        if path.name in ("glossary.md",):
            continue
        for number, line in enumerate(text(path).splitlines(), 1):
            if found := RULED_OUT.search(line):
                wrong.append(f"{path}:{number}: {found.group()}: see docs/glossary.md")
    assert not wrong, "\n".join(wrong)


def test_links_between_pages_lead_somewhere():
    wrong = []
    for path in sources(".md"):
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text(path)):
            if not (ROOT / path.parent / target).exists():
                wrong.append(f"{path}: {target}")
    assert not wrong, "\n".join(wrong)


def test_every_error_code_is_documented():
    page = set(re.findall(r"`([a-z_]+)`", text(ROOT / "docs" / "errors.md")))
    used = {}
    for path in sources(".py", under="jhetcc/"):
        for code in re.findall(r'\bcode="([a-z_]+)"', text(path)):
            used.setdefault(code, path)
    for path in sources(".cc", ".h", under="cc/"):
        if not is_test(path):
            for code in re.findall(r'Scope::k\w+,\s*"([a-z_]+)"', text(path)):
                used.setdefault(code, path)
    missing = [f"{code} ({path})" for code, path in sorted(used.items()) if code not in page and code != "error"]
    assert not missing, f"docs/errors.md lacks {missing}"
