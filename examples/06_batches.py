"""Several prompts in one call, and several answers to each; every row keeps as many tokens as the rule allows it."""

import hf_lossy_assist
from hf_lossy_assist import pairs

pair = pairs.load("arithmetic")
problems = pair.task.examples("test", 4)[1:]
inputs = pair.tokenizer([x.prompt for x in problems], return_tensors="pt", padding=True, padding_side="left")

with hf_lossy_assist.enabled(pair.target):
    output = pair.target.generate(
        **inputs,
        assistant_model=pair.draft,
        lossy_mode="cactus",
        lossy_config={"seed": 0},
        num_assistant_tokens=8,
        do_sample=True,
        num_return_sequences=2,
        max_new_tokens=160,
        return_dict_in_generate=True,
    )
texts = pair.tokenizer.batch_decode(output.sequences[:, inputs.input_ids.shape[1] :], skip_special_tokens=True)
for i, (text, stats) in enumerate(zip(texts, output.lossy_stats.rows, strict=True)):
    problem = problems[i // 2]
    print(f"{problem.prompt}\n{text.strip()}")
    print(f"  right answer: {problem.answer}; {stats.mean_accepted:.1f} drafted tokens kept a round\n")
print(f"{output.lossy_stats.target_calls} forward passes of the target for all {len(texts)} answers")
