"""Statistics of a run, from which tests work out what follows."""

from hf_lossy_assist import LossyStats

ROW = LossyStats(
    rounds=4,
    drafted=20,
    accepted=10,
    accepted_lossy=3,
    corrected=3,
    bonus=1,
    target_calls=4,
    draft_calls=20,
    accepted_histogram=(1, 0, 2, 1),
    accepted_by={"topk": 10},
    seconds={"total": 2.0, "drafting": 1.0},
    lossless=False,
    trace=("accepted",) * 7 + ("accepted_lossy",) * 3 + ("corrected",) * 3 + ("bonus",),
)
