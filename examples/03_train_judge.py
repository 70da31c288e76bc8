"""Mine a few problems, train a judge head, look at what would be published, and decode with it."""

import subprocess
import sys
import tempfile
from pathlib import Path

import hf_lossy_assist
from hf_lossy_assist import pairs


def command(*arguments):
    print("\n$ lossy-assist", *arguments, flush=True)
    subprocess.run([sys.executable, "-m", "hf_lossy_assist", *map(str, arguments)], check=True)


folder = Path(tempfile.mkdtemp())
data, head = folder / "mined", folder / "judge"
# Few problems, to be quick; a useful head needs thousands.
command("mine", "--pair", "arithmetic", "--limit", 8, "--out", data)
command("train", "judge", "--data", data, "--pair", "arithmetic", "--out", head)
print((head / "README.md").read_text())  # the card; `hf upload your-org/your-judge FOLDER` puts all on the Hub

pair = pairs.load("arithmetic")
problems = pair.task.examples("test", 4)
for mode, fields in {"lossless": {}, "judge": {"lossy_head": str(head)}}.items():
    kept = rounds = right = 0
    for problem in problems:
        inputs = pair.tokenizer(problem.prompt, return_tensors="pt")
        with hf_lossy_assist.enabled(pair.target):
            ids = pair.target.generate(
                **inputs,
                **fields,
                assistant_model=pair.draft,
                lossy_mode=mode,
                num_assistant_tokens=8,
                do_sample=False,
                max_new_tokens=160,
            )
        stats = hf_lossy_assist.last_stats(pair.target)
        kept, rounds = kept + stats.accepted, rounds + stats.rounds
        text = pair.tokenizer.decode(ids[0, inputs.input_ids.shape[1] :], skip_special_tokens=True)
        right += pair.task.correct(problem, text)
    print(f"{mode}: {kept / rounds:.2f} drafted tokens kept a round, {right} of {len(problems)} answers right")
