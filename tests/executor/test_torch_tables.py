"""Tables of torch's pipelining on real processes: one of each class and form here, all of them by `python -m validation tables`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from parasim.schedules.table import read_table
from validation.tables import run, select, workload

FOLDER = Path(__file__).parents[1] / "data" / "schedules" / "torch"
SAMPLE = {
    2: ["GPipe_p2_v1_m2.compute.csv", "1F1B_p2_v1_m4.compute.fixed.csv", "Interleaved1F1B_p2_v2_m4.comms.csv", "Interleaved1F1B_p2_v1_m2.comms_defer.csv"],
    4: ["InterleavedZeroBubble_p4_v2_m6.comms.csv", "ZBVZeroBubble_p4_v2_m8.compute.csv", "LoopedBFS_p4_v2_m8.comms_defer.csv", "DualPipeV_p4_v2_m8.comms.csv"],
}


@pytest.mark.processes
@pytest.mark.parametrize("ranks", sorted(SAMPLE))
def test_tables_run_to_their_end(ranks: int) -> None:
    paths = [FOLDER / name for name in SAMPLE[ranks]]
    for (name, comm, ops), path in zip(run(paths, ranks), paths, strict=True):
        made, model = workload(read_table(path))
        assert (name, comm) == (path.name, model)
        assert ops == sum(len(made.program_of(r).resolved) for r in range(ranks))  # every action and both ends of every message


def test_every_sound_table_of_few_ranks_is_chosen() -> None:
    chosen = [path.name for paths in select(FOLDER, 4).values() for path in paths]
    assert len(chosen) > 100 and not any(name.replace(".csv", ".fixed.csv") in chosen for name in chosen)
    assert {workload(read_table(FOLDER / name))[1] for name in chosen if "comms_defer" in name} == {"stream", "async"}  # some would deadlock one at a time
