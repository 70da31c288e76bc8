"""A real chat model, with its chat template: Qwen2.5-Coder-1.5B-Instruct, and its draft of 0.5B.

`make qwen-coder`, or one `pairs.load("qwen-coder")` with access to the Hub, downloads them. Without them, the bundled
pair answers; it has no chat template.
"""

import hf_lossy_assist
from hf_lossy_assist import pairs

pair = pairs.load("qwen-coder" if pairs.at_hand("qwen-coder") else "arithmetic")
question = "Tom has 12 apples and buys 30 more. Then Tom sells 5. How many apples does Tom have now?"
if pair.tokenizer.chat_template:
    messages = [{"role": "user", "content": question}]
    inputs = pair.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
else:
    inputs = pair.tokenizer(f"Question: {question}\nAnswer:", return_tensors="pt")

with hf_lossy_assist.enabled(pair.target, assistant_model=pair.draft, num_assistant_tokens=4):
    for mode in ("lossless", "min_p", "typical"):
        # Compare the answers too: a rule that is harmless with one model may not be with another.
        output = pair.target.generate(
            **inputs,
            lossy_mode=mode,
            lossy_config={"seed": 0},  # the same text every time
            do_sample=False,
            max_new_tokens=40,
            return_dict_in_generate=True,
        )
        answer = pair.tokenizer.decode(output.sequences[0, inputs.input_ids.shape[1] :], skip_special_tokens=True)
        print(f"{mode}: {answer}")
        print(f"  {output.lossy_stats.tokens_per_round:.2f} tokens per round")
