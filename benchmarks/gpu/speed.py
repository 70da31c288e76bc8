"""Whole calls: one text at a chosen acceptance, and batches, both beside the same runner without a draft."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import CompileConfig, LogitsProcessorList, PreTrainedModel

from hf_lossy_assist import last_stats
from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.drafting.vocabulary import SAME
from hf_lossy_assist.models.quantised import dtype_of, quantize_draft
from hf_lossy_assist.models.static.cache_slot import give_back, take_slot
from hf_lossy_assist.models.static.fixed import FixedSampler, Widths
from hf_lossy_assist.models.static.graphs import RECORDERS, CompiledRecording
from hf_lossy_assist.models.static.runner import StaticCacheRunner

from .known_texts import is_known, pair_of, prompts
from .run import Row, Run, heard

Model: TypeAlias = PreTrainedModel
GREEDY = FixedSampler(0, False, LogitsProcessorList(), None, SAME)
PLAIN = "no drafts"
ALPHA = 0.8


def speed(run: Run) -> None:
    """Time first calls, forward passes, and eight texts with γ = 4 and without drafts; then a rounded draft's passes.

    The first call is cold where the compiler has nothing on disk.
    """
    target, draft = pair_of(run, ALPHA)
    texts = prompts(run, 2 if run.tiny else 8) % target.config.vocab_size
    cases = {}
    for gamma in (4, 0):
        with run.step(f"first call, γ = {gamma}") as begins:
            if begins:
                kwargs = _ours(run, draft, gamma)
                with heard() as said:
                    row = decoded(run, target, texts[:1], run.tokens(128), **kwargs)  # as long as later ones
                run.say("first call", case=_name(gamma), **row, warned=said, aim_s=15)
                cases[_name(gamma)] = _later(run, target, texts, kwargs)
                forwards(run, target, texts[:1], widths=(gamma + 1,))
    forwards(run, draft, texts[:1], drafts=(1, 4))
    rows = run.interleaved("speed", cases, range(len(texts)))
    if PLAIN in rows:
        run.compare("speed", rows, PLAIN, alpha=ALPHA)
    if run.cuda:
        forwards(run, quantize_draft(draft), texts[:1], drafts=(1, 4))


def _name(gamma: int) -> str:
    return f"γ = {gamma}" if gamma else PLAIN


def _ours(run: Run, draft: Model, gamma: int) -> dict[str, Any]:
    ours = {"assistant_model": draft, "lossy_mode": "lossless", "num_assistant_tokens": gamma}
    return ours | {"lossy_config": {"compile": True}, "compile_config": config(run)}


def config(run: Run) -> CompileConfig:
    return CompileConfig() if run.cuda else CompileConfig(backend="eager")


def decoded(run: Run, target: Model, text: Tensor, new: int, **kwargs: Any) -> Row:
    """Time a call."""
    kwargs = {"do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(text)} | kwargs
    seconds, output = run.seconds(lambda: target.generate(text, max_new_tokens=new, **kwargs))
    right = is_known(output, text, target.config.vocab_size)
    if not right:
        run.fail("a known text")
    return {"tokens": len(text) * new, "seconds": round(seconds, 5), "text_is_right": right}


def _later(run: Run, target: Model, texts: Tensor, kwargs: dict[str, Any], new: int = 128) -> Callable[[int], Row]:
    """Return what times the second half of a text or a batch, which reads no prompt; it takes their number."""
    new = run.tokens(new)

    def measure(i: int) -> Row:
        text = texts[i].view(-1, texts.shape[-1])
        half = decoded(run, target, text, new // 2, **kwargs)
        rounds = last_stats(target).target_calls
        whole = decoded(run, target, text, new, **kwargs)
        later = max(whole["seconds"] - half["seconds"], 1e-6)
        rounds = max(1, last_stats(target).target_calls - rounds)
        return {
            "text": i, "tokens": whole["tokens"] - half["tokens"], "seconds": round(later, 6),
            "text_is_right": whole["text_is_right"], "ms_per_round": round(1000 * later / rounds, 3),
            "tokens_per_round": round(last_stats(target).tokens_per_round, 2), "with_prompt_s": whole["seconds"],
        }  # fmt: skip

    return measure


def batch(run: Run) -> None:
    """Time batches by recorded graphs, with drafts and without: the same six batches each."""
    target, draft = pair_of(run, ALPHA)
    for rows in (2,) if run.tiny else (8, 32):
        texts = prompts(run, 2 * rows if run.tiny else 6 * rows).view(-1, rows, 64) % target.config.vocab_size
        cases = {}
        for gamma in (4, 0):
            with run.step(f"batch of {rows}, γ = {gamma}") as begins:
                if begins:
                    kwargs = _ours(run, draft, gamma) | {"lossy_config": {}, "compile_config": None}
                    row = decoded(run, target, texts[0], run.tokens(64), **kwargs)
                    run.say("first call", case=_name(gamma), rows=rows, **row, peak_gb=run.peak_gb())
                    cases[_name(gamma)] = _later(run, target, texts, kwargs, 64)
        found = run.interleaved("batch", cases, range(len(texts)), rows=rows)
        if PLAIN in found:
            run.compare("batch", found, PLAIN, rows=rows, alpha=ALPHA)


def forwards(
    run: Run, model: Model, prompt: Tensor, widths: tuple[int, ...] = (), drafts: tuple[int, ...] = ()
) -> None:
    """Time forward passes over so many tokens, and whole drafts, alone: what a round's time is compared with."""
    if (recorder := RECORDERS.get(prompt.device.type)) is None:
        return
    how = CompiledRecording(recorder, config(run))
    about = {"parameters": model.num_parameters(), "int8": dtype_of(model) == "int8"}
    for what, number in [("tokens", n) for n in widths] + [("drafted", n) for n in drafts]:
        with run.step(f"forwards, {what} {number}") as begins, torch.no_grad():
            if not begins:
                continue
            shapes = Widths(widths, drafts=drafts, sampler=GREEDY, room=2 + max(widths + drafts))
            runner = StaticCacheRunner(model, take_slot(model, 256), {})
            runner.fixed.prepare(runner, how, shapes)
            runner.forward(prompt)
            start = runner.seen

            def once(runner=runner, start=start, what=what, number=number) -> None:
                runner.rewind(start)
                if what == "tokens":
                    runner.forward(prompt[:, :number])
                else:
                    runner.draft(prompt, number, Randomness())

            once()
            seconds, _ = run.seconds(lambda once=once: [once() for _ in range(20)])
            ms, seen = round(1000 * seconds / 20, 3), run.kernels(once)
            count = sum(n for n, _ in seen.values())
            run.say("forward", **{what: number}, **about, ms=ms, count=count, kernels=seen)
            give_back(model, runner.slot)
