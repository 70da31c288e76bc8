"""A chat with Qwen2.5-Coder-1.5B-Instruct and its draft of 0.5B: write messages, one a line, and an empty one to end.

`make qwen-coder`, or one `pairs.load("qwen-coder")` with access to the Hub, downloads them. Without them, the bundled
pair answers; it has no chat template, and knows word problems only.
"""

import sys

from transformers import TextStreamer

import hf_lossy_assist
from hf_lossy_assist import pairs

RULE = "min_p"
pair = pairs.load("qwen-coder" if pairs.at_hand("qwen-coder") else "arithmetic")
tokenizer, messages = pair.tokenizer, []


def inputs_for(text):
    messages.append({"role": "user", "content": text})
    if tokenizer.chat_template is None:
        return tokenizer(f"Question: {text}\nAnswer:", return_tensors="pt")
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)


print("You:", end=" ", flush=True)
with hf_lossy_assist.enabled(pair.target, assistant_model=pair.draft, num_assistant_tokens=4, lossy_mode=RULE):
    while text := sys.stdin.readline().strip():
        inputs = inputs_for(text)
        streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
        output = pair.target.generate(
            **inputs, streamer=streamer, do_sample=False, max_new_tokens=256, return_dict_in_generate=True
        )
        answer = output.sequences[0, inputs["input_ids"].shape[1] :]
        messages.append({"role": "assistant", "content": tokenizer.decode(answer, skip_special_tokens=True)})
        stats = output.lossy_stats
        print(f"({stats.tokens_per_round:.2f} tokens per round, {100 * stats.lossy_share:.0f} % kept only by {RULE})")
        print("You:", end=" ", flush=True)
