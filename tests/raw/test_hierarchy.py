# SPDX-License-Identifier: Apache-2.0
"""Every raw collective over clusters that run our own schedule: exact against numpy and the interpreter, on the engine as it is."""

import pytest
import raw_cases

WHERE = {
    (0, 1): (1, 1),
    (0, 0, 1, 1): (1, 1, 1, 1),
    (0, 1, 0, 1): (1, 1, 1, 1),
    (0, 1, 1, 1): (2, 1, 1),
    (1, 0, 2, 0): (1, 1, 1, 1),
    (0, 1, 1): (3,),
}


@pytest.mark.parametrize("nics", [0, 1, 2])
@pytest.mark.parametrize("where", WHERE, ids=str)
def test_hierarchical_schedules(pools, where, nics):
    """C125: gathers, and everything else, over interleaved and unequal clusters; forced, in small chunks."""
    options = {"JHETCC_ALGORITHM": "hierarchical", "JHETCC_CHUNK_BYTES": "8kb"}
    names = ("float32", "int16", "bfloat16")
    pool = pools(*WHERE[where])
    for used in pool.run(raw_cases.case_clusters, where, nics, names, (0, 3, 5001), options, options=options):
        assert "hierarchical" in used


def test_in_one_chunk_and_by_the_planners_choice(pools):
    for options in ({"JHETCC_ALGORITHM": "hierarchical_sequential"}, {}):
        pools(1, 1, 1, 1).run(
            raw_cases.case_clusters, (0, 1, 0, 1), 1, ("float32",), (7, 70_001), options, options=options
        )
