# SPDX-License-Identifier: Apache-2.0
"""One process of a job that runs cases: ``python run_cases.py MODULE[,MODULE] [NAME [LABEL,...]]`` under the launcher's environment.

NAME is one case, or empty for all of them, or ``-NAME,NAME`` for all but these; the labels are those of the processes'
clusters, by process.
Prints one line a case and stops with status 1 at the first that fails here. All processes run the same cases in the same
order.
"""

from __future__ import annotations

import importlib
import os
import pathlib
import sys
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))


def main(modules: str, only: str = "", labels: str = "") -> int:
    import jax
    from per_rank import cases_of

    import jhetcc

    if labels:
        os.environ["JHETCC_CLUSTER"] = labels.split(",")[int(os.environ["JHETCC_PROCESS_ID"])]
    comm = jhetcc.init()
    if labels:
        plan = comm.explain(f"psum(f32[{16 * comm.size}])")
        print("clusters", sorted(len(cluster.ranks) for cluster in comm.clusters), plan, flush=True)
    chosen = [
        (f"{module.__name__}.{name}", case)
        for module in map(importlib.import_module, modules.split(","))
        for name, case in cases_of(module, comm).items()
        if only in ("", name) or (only.startswith("-") and name not in only[1:].split(","))
    ]
    for name, case in chosen:
        begin = time.monotonic()
        try:
            case(comm)
            comm.check()
        except Exception:
            print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
            return 1
        print(f"ok {name} {time.monotonic() - begin:.1f} s", flush=True)
    jax.effects_barrier()
    comm.close()
    return 0 if chosen else 2


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.exit(main(*sys.argv[1:]))
