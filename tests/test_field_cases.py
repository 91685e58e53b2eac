# SPDX-License-Identifier: Apache-2.0
"""Checks tests/field_cases.toml: every number once, every named test there, every exception explained, nothing left open."""

import ast
import functools
import pathlib
import re
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
NUMBERS = [*(f"C{number:03}" for number in range(1, 147)), *(f"H{number}" for number in range(1, 9))]
AREAS = ("rails", "clusters", "devices")
REFUSE_OPEN = True


def cases():
    # tomllib refuses a number that occurs twice.
    with open(ROOT / "tests" / "field_cases.toml", "rb") as file:
        return tomllib.load(file)


@functools.cache
def names_in(path):
    text = path.read_text()
    if path.suffix == ".cc":
        return set(re.findall(r'TEST_CASE(?:_TEMPLATE)?\(\s*"([^"]+)"', text))
    names = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return names


def is_run(file, name):
    """Whether it is a case that tests/ops/test_run_time.py runs: in a module that every larger grouping runs whole."""
    path = pathlib.Path(file)
    runner = (ROOT / "tests" / "ops" / "test_run_time.py").read_text()
    return (
        path.parent.as_posix() == "tests/ops"
        and name.startswith("case_")
        and path.stem in re.findall(r"cases_\w+", runner)
    )


def problems(number, case):
    """What is wrong with one entry."""
    kinds = [kind for kind in ("tests", "reason", "status") if kind in case]
    if len(kinds) != 1 and kinds != ["tests", "reason"]:
        return [f"{number}: needs tests, a reason, both, or a status; has {kinds}"]
    if set(case) - {"symptom", "tests", "reason", "area", "status"}:
        return [f"{number}: unknown keys {sorted(case)}"]
    if "status" in case:
        return [] if case["status"] == "open" and not REFUSE_OPEN else [f"{number}: {case['status']}"]
    wrong = []
    if ("reason" in case or "area" in case) and not (case.get("area") in AREAS and len(case.get("reason", "")) > 15):
        wrong.append(f"{number}: a reason is a sentence and has an area of {AREAS}")
    if "tests" not in case:
        return wrong
    wrong += [] if case["tests"] else [f"{number}: names no test"]
    if len(set(case["tests"])) < len(case["tests"]):
        wrong.append(f"{number}: names a test twice")
    for test in case["tests"]:
        file, _, name = test.partition("::")
        if not (ROOT / file).is_file():
            wrong.append(f"{number}: no file {file}")
        elif name not in names_in(ROOT / file):
            wrong.append(f"{number}: no test {name} in {file}")
        elif pathlib.Path(file).suffix == ".py" and not (
            name.split("::")[-1].startswith("test_") or is_run(file, name)
        ):
            wrong.append(f"{number}: {name} is no test")
    return wrong


def test_every_number_occurs_once():
    assert list(cases()) == NUMBERS


def test_every_entry_holds():
    wrong = [line for number, case in cases().items() for line in problems(number, case)]
    assert not wrong, f"{len(wrong)} entries:\n" + "\n".join(wrong)


def test_the_check_itself():
    assert problems("C001", {"tests": ["tests/test_field_cases.py::test_the_check_itself"]}) == []
    assert problems("C001", {"tests": ["tests/test_field_cases.py::nowhere"]})
    assert problems("C001", {"tests": ["tests/nowhere.py::test_it"]})
    assert problems("C001", {"tests": []})
    assert problems("C001", {"tests": ["tests/test_field_cases.py::test_the_check_itself"] * 2})
    assert problems("C001", {"tests": ["tests/test_field_cases.py::cases"]})
    assert problems("C001", {"tests": ["tests/ops/cases_values.py::case_gathers"]}) == []
    assert problems("C001", {"tests": ["tests/raw/raw_cases.py::case_tables"]})
    assert problems("C001", {"tests": ["cc/tests/net/connect_test.cc::waits can be cancelled"]}) == []
    assert problems("C001", {"tests": ["cc/tests/net/connect_test.cc::nothing of the kind"]})
    assert problems("C001", {"reason": "it needs several paths", "area": "rails"}) == []
    assert problems("C001", {"reason": "it needs several paths"})
    here = ["tests/test_field_cases.py::test_the_check_itself"]
    assert problems("C001", {"tests": here, "reason": "half of it needs several paths", "area": "rails"}) == []
    assert problems("C001", {"tests": here, "reason": "half of it needs several paths"})
    assert problems("C001", {"tests": here, "area": "rails"})
    assert problems("C001", {"tests": here, "status": "open"})
    assert problems(
        "C001", {"tests": ["tests/nowhere.py::test_it"], "reason": "it needs several paths", "area": "rails"}
    )
    assert problems("C001", {"reason": "no", "area": "rails"})
    assert problems("C001", {"status": "open", "tests": []})
    assert problems("C001", {})
