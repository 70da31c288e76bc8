"""Answer one question with the target alone, losslessly assisted, and under a lossy rule."""

import hf_lossy_assist
from hf_lossy_assist import pairs

pair = pairs.load("arithmetic")
question = pair.task.examples("test", 2)[1]
inputs = pair.tokenizer(question.prompt, return_tensors="pt")
print(question.prompt)

hf_lossy_assist.enable(pair.target)
for mode in (None, "lossless", "dropmatch"):
    assisted = {"assistant_model": pair.draft, "num_assistant_tokens": 8} if mode else {}
    output = pair.target.generate(
        **inputs,
        **assisted,
        lossy_mode=mode,
        do_sample=False,
        max_new_tokens=160,
        return_dict_in_generate=True,
    )
    text = pair.tokenizer.decode(output.sequences[0, inputs.input_ids.shape[1] :], skip_special_tokens=True)
    print(f"\n{mode or 'target alone'}:{text}")
    if mode:
        stats = output.lossy_stats
        print(
            f"  {stats.tokens_per_round:.1f} tokens per round, {stats.accepted_lossy} accepted only by the lossy rule"
        )
hf_lossy_assist.disable(pair.target)
