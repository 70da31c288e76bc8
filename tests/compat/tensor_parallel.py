"""Run in two processes that compute every forward of the target together: both have to decide alike."""

from __future__ import annotations

import os
import runpy
import sys

import torch
import torch.distributed as dist
from transformers import LlamaForCausalLM
from transformers.distributed import DistributedConfig

import hf_lossy_assist
from hf_lossy_assist import pairs
from tests.acceptors.fixtures import verifier_head
from tests.forking import leave
from tests.parity import assert_same_rows
from tests.tiny_models import noisy_copy, padded, prompt, tiny

alone = tiny()
target = LlamaForCausalLM.from_pretrained(sys.argv[1], distributed_config=DistributedConfig(tp_size=2)).eval()
draft = noisy_copy(alone, 0.05)
rank = int(os.environ["RANK"])
torch.manual_seed(rank)  # what the processes draw by themselves differs
hf_lossy_assist.enable()


def same_everywhere(name: str, ids: torch.Tensor) -> None:
    other = ids.clone()
    dist.broadcast(other, src=0)
    if other.shape != ids.shape or not other.equal(ids):
        sys.exit(f"{name}: {ids} on rank {rank}, {other} on rank 0")


CASES = {
    "lossless": {},
    "dropmatch": {"lossy_mode": "dropmatch"},
    "prompt lookup": {"assistant_model": None, "prompt_lookup_num_tokens": 4},
    "automatic length": {"num_assistant_tokens": "auto", "max_new_tokens": 24},
    "seeded": {"lossy_config": {"seed": 3}},
    "tree": {"lossy_mode": "typical", "lossy_config": {"tree": {"depth": 3, "top_k": 2, "nodes": 6}}},
    "sprinter": {"lossy_mode": "sprinter", "lossy_head": verifier_head(alone, draft, scale=3.0, seed=1)},
}
for name, options in CASES.items():
    greedy, drawn = ({"input_ids": prompt()}, False), (padded(), True)
    for inputs, do_sample in (greedy, drawn) if name == "lossless" else (drawn,):
        common = {"assistant_model": draft, "lossy_mode": "lossless", "max_new_tokens": 12, "eos_token_id": None}
        ids = target.generate(**inputs, **{**common, **options}, do_sample=do_sample)
        same_everywhere(f"{name}, {do_sample=}", ids)
for do_sample in (False, True):
    with hf_lossy_assist.LossyVerification("dropmatch", target, assistant_model=draft) as hook:
        ids = target.generate(
            prompt(), assistant_model=draft, logits_processor=[hook], do_sample=do_sample, max_new_tokens=12,
            eos_token_id=None,
        )  # fmt: skip
    same_everywhere(f"stock's loop, {do_sample=}", ids)
plainly = {"do_sample": False, "eos_token_id": None, "max_new_tokens": 24, "input_ids": prompt()}
ours = target.generate(**plainly, assistant_model=draft, lossy_mode="lossless")
assert_same_rows(ours, alone.generate(**plainly, return_dict_in_generate=True, output_logits=True))
hf_lossy_assist.disable()
pair = pairs.load("arithmetic")
sharded = LlamaForCausalLM.from_pretrained(pair.target.name_or_path, distributed_config=DistributedConfig(tp_size=2))
if sharded(prompt()).logits.shape[-1] != sharded.config.vocab_size:
    sys.stdout.write("tied embeddings can't be sharded in this version")
else:
    runpy.run_path("examples/11_tensor_parallel.py", run_name="__main__")
leave()
