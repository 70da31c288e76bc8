"""Train a verifier head on a few problems, and let the draft run ahead of the target with it (SPRINTER)."""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import hf_lossy_assist
from hf_lossy_assist import pairs


def command(*arguments):
    print("\n$ lossy-assist", *arguments, flush=True)
    subprocess.run([sys.executable, "-m", "hf_lossy_assist", *map(str, arguments)], check=True)


folder = Path(tempfile.mkdtemp())
data, head = folder / "mined", folder / "verifier"
# Few problems, to be quick; a useful head needs thousands.
command("mine", "--labels", "ratio", "--pair", "arithmetic", "--limit", 10, "--out", data)
command("train", "verifier", "--data", data, "--pair", "arithmetic", "--out", head)

pair = pairs.load("arithmetic")
problem = pair.task.examples("test", 2)[1]
inputs = pair.tokenizer(problem.prompt, return_tensors="pt")
torch.manual_seed(0)
with hf_lossy_assist.enabled(pair.target):
    for threshold in (0.5, 0.3):
        output = pair.target.generate(
            **inputs,
            assistant_model=pair.draft,
            lossy_mode="sprinter",
            lossy_head=str(head),
            lossy_config={"threshold": threshold, "max_draft": 32},
            do_sample=True,
            max_new_tokens=160,
            return_dict_in_generate=True,
        )
        stats = output.lossy_stats
        text = pair.tokenizer.decode(output.sequences[0, inputs.input_ids.shape[1] :], skip_special_tokens=True)
        print(f"\nthreshold {threshold}:{text}")
        print(f"  {stats.target_calls} calls of the target for {len(stats.trace)} tokens;")
        print(f"  before each, the draft committed {stats.mean_run:.1f} tokens alone")
