"""An EAGLE-3 head drafts from the target's own states: chains, and trees, which keep more at the same depth."""

import hf_lossy_assist
from hf_lossy_assist import pairs

pair = pairs.load("arithmetic")
inputs = pair.tokenizer(pair.task.examples("test", 4)[3].prompt, return_tensors="pt")
shapes = {"chains": {}, "trees": {"tree": {"depth": 4, "top_k": 4, "nodes": 16}}}
rules = {
    "lossless": {},
    "min_p": {},
    "dropmatch": {"criterion": "naive", "seed": 0},  # compares tokens, since those of a tree are chosen, not drawn
    "judge": {},
}

with hf_lossy_assist.enabled(pair.target, assistant_model=pair.eagle3, num_assistant_tokens=4):
    for rule, config in rules.items():
        for shape, tree in shapes.items():
            output = pair.target.generate(
                **inputs,
                lossy_mode=rule,
                lossy_head=pair.heads["judge"] if rule == "judge" else None,
                lossy_config={**config, **tree},
                do_sample=False,
                max_new_tokens=80,
                return_dict_in_generate=True,
            )
            kept = output.lossy_stats.mean_accepted
            print(f"{rule}, {shape} of depth 4: {kept:.2f} drafted tokens kept a round")
