# SPDX-License-Identifier: Apache-2.0
"""What the house tests know of the tree: its files, its rooms, and which room may see which."""

import ast
import functools
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Arrows go leftwards only; rooms of one column never see each other.
CPP_COLUMNS = (
    ("base",),
    ("trace", "schedule", "device", "net"),
    ("transport", "ccl", "control"),
    ("rail",),
    ("engine",),
    ("runtime",),
    ("ffi",),
    ("py",),
)
CPP_COLUMN = {room: column for column, rooms in enumerate(CPP_COLUMNS) for room in rooms}
# Rooms of many kinds: a kind's headers are its own and runtime's, which alone names concrete ones.
CPP_KINDS = ("transport", "ccl", "device")
# Headers that come with the build environment, by the one room that sees them.
OUTSIDE = {"xla": "ffi"}
# Headers of vendors and of optional libraries stay in the room that loads the library late.
VENDOR_HEADERS = {
    r"cuda|cudart|nvml": "device",
    r"hip/": "device",
    r"nccl|rccl|oneapi/ccl|mpi\.h": "ccl",
    r"infiniband/|rdma/": "transport",
    r"openssl/": "net",
}


@functools.cache
def files() -> tuple[pathlib.Path, ...]:
    """Everything git tracks or would track, relative to the root; a tree without git is listed as it is."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode == 0:
        names = listing.stdout.splitlines()
    else:
        skipped = {"build", "out", "dist", ".git", "__pycache__"}
        names = [
            str(path.relative_to(ROOT))
            for path in ROOT.rglob("*")
            if path.is_file() and not any(part in skipped or part.startswith(".venv") for part in path.parts)
        ]
    return tuple(sorted(pathlib.Path(name) for name in names if (ROOT / name).is_file()))


def sources(*suffixes: str, under: str = "") -> list[pathlib.Path]:
    return [path for path in files() if path.suffix in suffixes and str(path).startswith(under)]


def text(path: pathlib.Path) -> str:
    return (ROOT / path).read_text()


def cpp_place(path: str) -> tuple[str, str]:
    """Room and kind ("" for the room itself) of a path below cc."""
    parts = path.split("/")
    kind = parts[1] if parts[0] in CPP_KINDS and len(parts) > 2 else ""
    return parts[0], kind


def cpp_includes(source: str) -> list[str]:
    return re.findall(r'^\s*#\s*include\s+"([^"]+)"', source, re.MULTILINE)


def why_not(includer: str, included: str) -> str | None:
    """Why a file below cc may not include another, or None; paths relative to cc."""
    room, kind = cpp_place(includer)
    seen, seen_kind = cpp_place(included)
    if OUTSIDE.get(seen) == room:
        return None
    if seen not in CPP_COLUMN:
        return f'write the room in front: "{included}" is in no room'
    if room == seen:
        return None if seen_kind in ("", kind) else f"{room}/{kind or '.'} may not see {seen}/{seen_kind}"
    if CPP_COLUMN[seen] >= CPP_COLUMN[room]:
        return f"{room} may not see {seen}"
    if seen_kind and room != "runtime":
        return f"only runtime names {seen}/{seen_kind}"
    return None


def function_lengths(tree: ast.AST) -> list[tuple[str, int]]:
    """Name and lines of every function, docstring not counted."""
    lengths = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines -= (first.end_lineno or first.lineno) - first.lineno + 1
            lengths.append((node.name, lines))
    return lengths


def jax_private_names(tree: ast.AST) -> list[str]:
    """Names private to JAX that a module uses: jax._src, jaxlib, and attributes with an underscore."""
    found = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        for name in names:
            parts = name.split(".")
            private = any(part.startswith("_") and not part.startswith("__") for part in parts)
            if parts[0] == "jaxlib" or (parts[0] == "jax" and private):
                found.append(name)
    return found
