"""A target that does not fit into memory: layers on disk are read again in every forward pass, so fewer passes pay."""

import tempfile
from collections import Counter

from transformers import AutoModelForCausalLM

import hf_lossy_assist
from hf_lossy_assist import pairs

pair = pairs.load("arithmetic")
# device_map="auto" fills GPUs first, then memory, then the disk. Here the last layers always go to the disk.
layers = len(pair.target.model.layers)
device_map = dict.fromkeys(("model.embed_tokens", "model.rotary_emb", "model.norm", "lm_head"), "cpu")
device_map |= {f"model.layers.{i}": "cpu" if i == 0 else "disk" for i in range(layers)}

with tempfile.TemporaryDirectory() as folder:
    target = AutoModelForCausalLM.from_pretrained(
        pair.target.name_or_path, device_map=device_map, offload_folder=folder
    )
    print("layers and other parts:", dict(Counter(map(str, target.hf_device_map.values()))))

    passes = []
    target.get_output_embeddings().register_forward_hook(lambda *_: passes.append(1))
    problem = pair.task.examples("test", 2)[1]
    inputs = pair.tokenizer(problem.prompt, return_tensors="pt")
    with hf_lossy_assist.enabled(target):
        for mode in (None, "lossless", "min_p"):
            # The draft is small: it stays where it is.
            assisted = {"assistant_model": pair.draft, "num_assistant_tokens": 8} if mode else {}
            passes.clear()
            ids = target.generate(**inputs, **assisted, lossy_mode=mode, do_sample=False, max_new_tokens=160)
            new = ids.shape[1] - inputs.input_ids.shape[1]
            print(f"{mode or 'target alone'}: {len(passes)} passes of the target for {new} tokens")
print(pair.tokenizer.decode(ids[0], skip_special_tokens=True))
