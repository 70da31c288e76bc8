"""Many continuations in one forward pass of the target: a tree keeps more than a chain of the same depth."""

import hf_lossy_assist
from hf_lossy_assist import pairs

pair = pairs.load("arithmetic")
inputs = pair.tokenizer(pair.task.examples("test", 4)[3].prompt, return_tensors="pt")
settings = {"max_new_tokens": 80, "do_sample": False, "return_dict_in_generate": True}
tree = {"depth": 4, "top_k": 4, "nodes": 16}

with hf_lossy_assist.enabled(pair.target):
    for rule in ("lossless", "min_p"):
        for config in ({}, {"tree": tree}):
            output = pair.target.generate(
                **inputs, assistant_model=pair.draft, lossy_mode=rule, lossy_config={"seed": 0, **config},
                num_assistant_tokens=4, **settings,
            )  # fmt: skip
            kept = output.lossy_stats.mean_accepted
            print(f"{rule}, {'trees' if config else 'chains'} of depth 4: {kept:.2f} drafted tokens kept a round")
