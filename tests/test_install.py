# SPDX-License-Identifier: Apache-2.0
"""What the installed package needs: nothing of a vendor, and the files a package must bring."""

import importlib.metadata
import importlib.util
import pathlib
import re
import struct

import jhetcc

# What any Linux with a C++ compiler's run-time has.
COMMON = ("libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "libstdc++.so", "libgcc_s.so", "ld-linux")


def needed_libraries(path):
    """DT_NEEDED of a 64-bit little-endian ELF file."""
    data = pathlib.Path(path).read_bytes()
    assert data[:6] == b"\x7fELF\x02\x01", "64-bit little-endian ELF"
    section_offset, entry_size, count = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, section_offset + k * entry_size) for k in range(count)]
    names = []
    for _, kind, _, _, offset, size, link, *_ in sections:
        if kind == 6:  # SHT_DYNAMIC
            strings = sections[link][4]
            for place in range(offset, offset + size, 16):
                tag, value = struct.unpack_from("<qQ", data, place)
                if tag == 1:  # DT_NEEDED
                    names.append(data[strings + value : data.index(b"\0", strings + value)].decode())
    return names


def test_the_core_needs_no_library_of_a_vendor():
    core = importlib.util.find_spec("jhetcc._core")
    assert core is not None and core.origin is not None
    needed = needed_libraries(core.origin)
    assert any(name.startswith("libc.so") for name in needed), needed
    assert all(name.startswith(COMMON) for name in needed), needed


def test_the_package_is_typed():
    folder = pathlib.Path(jhetcc.__file__).parent
    assert (folder / "py.typed").exists() and (folder / "_core.pyi").exists()


def test_the_command_is_installed():
    scripts = importlib.metadata.entry_points(group="console_scripts")
    assert any(script.name == "jhetcc" and script.value == "jhetcc.cli:main" for script in scripts)


def signatures(text):
    """Every function of a stub with its parameters, in order; layout and docstrings aside."""
    found = re.findall(r"(?:class (\w+))|(?:def (\w+)\((.*?)\)(?: ->|:))", text, flags=re.DOTALL)
    return [(kind or name, " ".join(parameters.split())) for kind, name, parameters in found]


def test_stub_is_that_of_the_core():
    """Written by ``make docs``."""
    from nanobind.stubgen import StubGen

    import jhetcc._core

    generator = StubGen(jhetcc._core)
    generator.put(jhetcc._core)
    checked_in = (pathlib.Path(__file__).parents[1] / "jhetcc" / "_core.pyi").read_text()
    assert signatures(generator.get()) == signatures(checked_in)
