"""Run in two processes: texts of different lengths, forwards in step."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

import hf_lossy_assist
from tests.acceptors.fixtures import verifier_head as head_for
from tests.forking import leave
from tests.tiny_models import noisy_copy, padded, prompt, tiny

dist.init_process_group("gloo")
target = tiny()
draft = noisy_copy(target, 0.02)
forwards = []


def meet(*_) -> None:
    """Stand for the gathering of sharded weights: waits for the other process, for ever if it does not come."""
    forwards.append(1)
    dist.all_reduce(torch.ones(1))


target.register_forward_pre_hook(meet)
hf_lossy_assist.enable()
common = {"do_sample": False, "eos_token_id": None, "synced_gpus": True, "assistant_model": draft}
length = 6 + 20 * dist.get_rank()
for mode, inputs, head in (
    ("lossless", {"input_ids": prompt(5, seed=dist.get_rank())}, None),
    ("topk", padded(), None),
    ("sprinter", {"input_ids": prompt(5)}, head_for(target, draft, scale=3.0, seed=1)),
    ("sprinter", padded(), head_for(target, draft, bias=50.0, scale=0.0)),
):
    forwards.clear()
    out = target.generate(**inputs, **common, lossy_mode=mode, lossy_head=head, max_new_tokens=length)
    if out.shape[1] != inputs["input_ids"].shape[1] + length:
        sys.exit(f"{mode}: {out.shape}")
    counts = [torch.zeros(1) for _ in range(2)]
    dist.all_gather(counts, torch.tensor([float(len(forwards))]))
    if counts[0] != counts[1]:
        sys.exit(f"{mode}: {counts}")
plain = target.generate(input_ids=prompt(5), do_sample=False, eos_token_id=None, max_new_tokens=8, synced_gpus=True)
ours = target.generate(input_ids=prompt(5), **common, lossy_mode="lossless", max_new_tokens=8)
if not plain.equal(ours):
    sys.exit("texts differ")
leave()
