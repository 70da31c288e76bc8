"""A grid of acceptances and draft lengths, beside plain decoding and transformers' assisted generation; waits."""

from __future__ import annotations

import collections
import traceback
import warnings
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.growing.geometry import PRESETS
from hf_lossy_assist import last_stats

from .known_texts import continue_by, drafts_of, is_known, pair_of, prompts
from .predictions import ALPHAS, CARDS, GAMMAS, predict
from .run import Run
from .speed import WAYS, Model, config, forwards


def grid(run: Run) -> None:
    """Measure the grid, from what matters most to the rest."""
    target, draft = pair_of(run, 0.8)
    prompt, gammas = prompts(run), GAMMAS[:1] if run.tiny else GAMMAS
    run.say("grid", memory_gb=run.peak_gb(), shapes="tiny" if run.tiny else "8B/1B")
    target.generate(prompt, max_new_tokens=4, do_sample=False, pad_token_id=0)
    compiled = []  # the draft lengths
    for gamma in gammas:
        if _ours(run, target, draft, prompt, "compiled", 0.8, gamma, needs=70):
            compiled.append(gamma)
        _ours(run, target, draft, prompt, "graphs", 0.8, gamma)
        if gamma == gammas[0]:
            for way in ("compiled", "graphs"):
                forwards(run, target, draft, prompt, way, gamma)
                _ours(run, target, draft, prompt, way, 0.8, 0, needs=40 if way == "compiled" else 0)
            _theirs(run, target, draft, prompt, 0.8, gamma)
    _waits(run, target, draft, prompt)
    for alpha in () if run.tiny else (*(x for x in ALPHAS if x != 0.8), 1.0):
        continue_by(draft, alpha)
        for gamma in compiled:
            _ours(run, target, draft, prompt, "compiled", alpha, gamma)
    continue_by(draft, 0.8)
    _ours(run, target, draft, prompt, "eager", 0.8, gammas[0])


def _ours(
    run: Run, target: Model, draft: Model, prompt: Tensor, way: str, alpha: float, gamma: int, needs: float = 0.0
) -> bool:
    """Time ``lossless``, and tell whether there was time for it; without drafts it is the fair baseline."""
    with run.step(f"{way}, {alpha}, {gamma}", needs if run.cuda else 0.0) as begins:
        if begins:
            ours = {"assistant_model": draft, "lossy_mode": "lossless", "num_assistant_tokens": gamma}
            ours |= {"lossy_config": WAYS[way], "compile_config": config(run)}
            row = timed(run, target, prompt, run.tokens(128), **ours)
            row |= _expected(run, alpha, gamma, way == "eager")
            run.say("grid", case=f"lossless, {way}", alpha=alpha, gamma=gamma, **row)
    return begins


def _theirs(run: Run, target: Model, draft: Model, prompt: Tensor, alpha: float, gamma: int) -> None:
    """Time what transformers offers: plain decoding and assisted generation, on dynamic caches and on compiled ones."""
    assisted = {"assistant_model": draft}
    static = {"cache_implementation": "static"}  # transformers compiles there, on a GPU
    for case, seconds, new, kwargs in (
        ("plain, static and compiled", 50, 128, static),
        ("transformers, static and compiled", 50, 128, static | assisted),
        ("plain, dynamic", 0, 64, {}),
        ("transformers, dynamic", 0, 64, assisted),
    ):
        with run.step(case, seconds if run.cuda else 0) as begins, drafts_of(draft, gamma):
            if begins:
                drafting = {"alpha": alpha, "gamma": gamma} if "assistant_model" in kwargs else {}
                run.say("grid", case=case, **drafting, **timed(run, target, prompt, run.tokens(new), **kwargs))


def _expected(run: Run, alpha: float, gamma: int, eager: bool) -> dict[str, Any]:
    """Return what was predicted for this card."""
    name = torch.cuda.get_device_name() if run.cuda else ""
    card = next((x for x in CARDS if x.name in name), None)
    if card is None:
        return {}
    own = predict(card, PRESETS["llama-8b"], PRESETS["llama-1b"], alpha, gamma, eager)
    return {"predicted_ms_per_round": own.round_ms, "predicted_tokens_per_round": own.tokens_per_round}


def timed(run: Run, target: Model, prompt: Tensor, new: int, **kwargs: Any) -> dict[str, Any]:
    """Time a call, three times if it is fast; a call before records or compiles.

    What comes ``later`` is its second half, which reads no prompt.
    """
    kwargs = {"do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(prompt)} | kwargs
    first, _ = run.seconds(partial(target.generate, prompt, max_new_tokens=new, **kwargs))
    taken: list[list[float]] = [[], []]
    rounds = [0, 0]
    while len(taken[0]) < 3 and sum(map(sum, taken)) < 4:
        for i, count in enumerate((new // 2, new)):
            seconds, output = run.seconds(partial(target.generate, prompt, max_new_tokens=count, **kwargs))
            taken[i].append(seconds)
            rounds[i] = last_stats(target).target_calls if "lossy_mode" in kwargs else 0
    half, whole = map(median, taken)
    row = {"tokens_per_s": round(len(prompt) * new / whole, 1), "calls": len(taken[0]), "first_call_s": round(first, 2)}
    row |= {"tokens_per_s_later": round(len(prompt) * (new - new // 2) / (whole - half), 1)}
    row |= {"text_is_right": is_known(output, prompt, target.config.vocab_size), "peak_gb": run.peak_gb()}
    if not row["text_is_right"]:
        run.fail("a known text")
    if "lossy_mode" in kwargs:
        stats = last_stats(target)
        row |= {"tokens_per_round": round(stats.tokens_per_round, 2), "rounds": stats.target_calls}
        row |= {"ms_per_round": round(1000 * (whole - half) / max(1, rounds[1] - rounds[0]), 3)}
        row["host_ms_per_round"] = {x: round(1000 * s / stats.target_calls, 3) for x, s in stats.seconds.items()}
    return row


def _waits(run: Run, target: Model, draft: Model, prompt: Tensor) -> None:
    """Say where the host waits for the device, per round, by torch's own debug mode."""
    ours = {"assistant_model": draft, "lossy_mode": "lossless", "num_assistant_tokens": 4}
    cases = {
        "lossless": {}, "lossless, eager": {"lossy_config": WAYS["eager"]},
        "default length": {"num_assistant_tokens": "auto"}, "drawn": {"do_sample": True},
        "tree": {"lossy_config": {"tree": {"depth": 4, "top_k": 4, "nodes": 16}}},
        "typical": {"lossy_mode": "typical"}, "repetition penalty": {"repetition_penalty": 1.1},
    }  # fmt: skip
    for case, kwargs in cases.items():
        with run.step(f"waits, {case}") as begins:
            if not begins or not run.cuda:
                continue
            kwargs = {"do_sample": False, "pad_token_id": 0, **ours, **kwargs}
            target.generate(prompt, max_new_tokens=72, **kwargs)
            found = [_waits_of(target, prompt, count, kwargs) for count in (40, 72)]
            rounds = max(1, found[1][1] - found[0][1])
            sites = {x: round((n - found[0][0][x]) / rounds, 2) for x, n in found[1][0].items() if n > found[0][0][x]}
            run.say("waits", case=case, per_round=round(sum(sites.values()), 2), sites=sites)


def _waits_of(target: Model, prompt: Tensor, count: int, kwargs: dict[str, Any]) -> tuple[collections.Counter, int]:
    sites: collections.Counter[str] = collections.Counter()

    def show(message: Any, *args: Any, **named: Any) -> None:
        if "synchronizing" in str(message):
            frames = [
                x for x in traceback.extract_stack() if "hf_lossy_assist" in x.filename
            ] or traceback.extract_stack()
            sites[f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        torch.cuda.set_sync_debug_mode("warn")
        try:
            target.generate(prompt, max_new_tokens=count, **kwargs)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sites, last_stats(target).target_calls
