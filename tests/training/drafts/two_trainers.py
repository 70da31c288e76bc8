"""Run by `accelerate launch` in two processes, which train one draft."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from hf_lossy_assist.training.drafts.text_store import TextStore
from tests.leaving import leave
from tests.training.drafts.fixtures import training

texts, folder = map(Path, sys.argv[1:])
run = training(TextStore(texts), folder)
process = run.accelerator.process_index
run.data.process, run.data.processes = process, run.accelerator.num_processes
first = next(run.data.batches(run.state.position))[0]
run.train(held_out_texts=4, stopped=lambda: run.state.step == 6)
weights = b"".join(p.detach().numpy().tobytes() for p in run.objective.parameters())
said = {
    "weights": hashlib.sha256(weights).hexdigest(),
    "first": first.ids.tolist(),
    "seen": run.state.tokens_seen,
}
(folder / f"{process}.json").write_text(json.dumps(said))
leave()
