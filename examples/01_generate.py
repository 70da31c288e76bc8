"""Answer one question with the target alone, losslessly assisted, and under a lossy rule."""

import hf_lossy_assist
from hf_lossy_assist import pairs

pair = pairs.load("arithmetic")
question = pair.task.examples("test", 2)[1]
inputs = pair.tokenizer(question.prompt, return_tensors="pt")
print(question.prompt)

hf_lossy_assist.enable(pair.target)
for mode in (None, "lossless", "min_p"):
    # With a seed, the figures are the same every time.
    assisted = {"assistant_model": pair.draft, "num_assistant_tokens": 16, "lossy_config": {"seed": 0}} if mode else {}
    output = pair.target.generate(
        **inputs,
        **assisted,
        lossy_mode=mode,
        do_sample=False,
        max_new_tokens=160,
        return_dict_in_generate=True,
    )
    new = output.sequences[0, inputs.input_ids.shape[1] :]
    print(f"\n{mode or 'target alone'}:{pair.tokenizer.decode(new, skip_special_tokens=True)}")
    calls, lossy = (output.lossy_stats.target_calls, output.lossy_stats.accepted_lossy) if mode else (len(new), 0)
    print(f"  {calls} calls of the target for {len(new)} tokens, {lossy} of them kept only by the lossy rule")
hf_lossy_assist.disable(pair.target)
