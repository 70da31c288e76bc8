"""One target on two processes, each with a part of the weights.

torchrun --nproc-per-node 2 examples/11_tensor_parallel.py
"""

import os

import torch.distributed as dist
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

import hf_lossy_assist
from hf_lossy_assist import pairs

processes = int(os.environ.get("WORLD_SIZE", 1))  # torchrun says how many
pair = pairs.load("arithmetic")
sharded = {"distributed_config": DistributedConfig(tp_size=processes)} if processes > 1 else {}
target = AutoModelForCausalLM.from_pretrained(pair.target.name_or_path, **sharded).eval()
inputs = pair.tokenizer(pair.task.examples("test", 2)[1].prompt, return_tensors="pt")

# The draft is small: every process has it whole. No seed is needed: rank 0 draws one for all.
with hf_lossy_assist.enabled(target, assistant_model=pair.draft, lossy_mode="cactus"):
    ids = target.generate(**inputs, do_sample=True, temperature=0.7, max_new_tokens=60)
    stats = hf_lossy_assist.last_stats(target)
if int(os.environ.get("RANK", 0)) == 0:
    print(pair.tokenizer.decode(ids[0], skip_special_tokens=True))
    print(f"{processes} processes, {stats.mean_accepted:.1f} drafted tokens kept a round")
if dist.is_initialized():
    dist.destroy_process_group()
