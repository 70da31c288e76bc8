"""Speed at a chosen acceptance, beside plain decoding and transformers' assisted generation; waits; batches."""

from __future__ import annotations

import collections
import traceback
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import CompileConfig, PreTrainedModel

from benchmarks.growing.geometry import PRESETS
from hf_lossy_assist import last_stats
from hf_lossy_assist.models.static.cache_slot import take_slot
from hf_lossy_assist.models.static.fixed_runner import Shapes
from hf_lossy_assist.models.static.graphs import RECORDERS, Recording
from hf_lossy_assist.models.static.runner import StaticCacheRunner

from .known_texts import continue_by, drafts_of, is_known, pair_of, prompts
from .predictions import ALPHAS, CARDS, GAMMAS, predict
from .run import Run

EAGER = {"compile": False}


def speed(run: Run) -> None:
    """Measure the grid, from what matters most to the rest."""
    target, draft = pair_of(run)
    new = run.tokens(128)
    prompt = prompts(run)
    run.say("speed", memory_gb=run.peak_gb(), shapes="tiny" if run.tiny else "8B/1B")
    target.generate(prompt, max_new_tokens=4, do_sample=False, pad_token_id=0)
    for name, kwargs in (("plain", {}), ("plain, static and compiled", _static(run))):
        with run.step(name, 60 if kwargs and run.cuda else 0) as begins:
            if begins:
                run.say("speed", case=name, **timed(run, target, draft, prompt, new, **kwargs))
    _forwards(run, target, draft, prompt)
    _grid(run, target, draft, prompt, new, 0.8)
    _waits(run, target, draft, prompt)
    _batches(run, target, draft)
    _compiled(run, target, draft, prompt, new)
    for alpha in () if run.tiny else (*(x for x in ALPHAS if x != 0.8), 1.0):
        _grid(run, target, draft, prompt, new, alpha)


def _grid(
    run: Run, target: PreTrainedModel, draft: PreTrainedModel, prompt: torch.Tensor, new: int, alpha: float
) -> None:
    """Time every γ at one α: with graphs, one by one, and transformers' assisted generation."""
    continue_by(draft, alpha)
    for gamma in GAMMAS[:1] if run.tiny else GAMMAS:
        ours = {"assistant_model": draft, "lossy_mode": "lossless", "num_assistant_tokens": gamma}
        for case, kwargs in {"graphs": {}, "eager": {"lossy_config": EAGER}}.items():
            with run.step(f"{case}, {alpha}, {gamma}") as begins:
                if begins:
                    row = timed(run, target, draft, prompt, new, **ours, **kwargs)
                    row |= _expected(run, alpha, gamma, case == "eager")
                    run.say("speed", case=f"lossless, {case}", alpha=alpha, gamma=gamma, **row)
        with run.step(f"transformers, {alpha}, {gamma}") as begins, drafts_of(draft, gamma):
            if begins:
                row = timed(run, target, draft, prompt, new, assistant_model=draft)
                run.say("speed", case="transformers, dynamic", alpha=alpha, gamma=gamma, **row)


def _static(run: Run) -> dict[str, Any]:
    return {"cache_implementation": "static"}  # transformers compiles there, on a GPU


def _expected(run: Run, alpha: float, gamma: int, eager: bool) -> dict[str, Any]:
    """Return what was predicted for this card."""
    name = torch.cuda.get_device_name() if run.cuda else ""
    card = next((x for x in CARDS if x.name in name), None)
    if card is None:
        return {}
    own = predict(card, PRESETS["llama-8b"], PRESETS["llama-1b"], alpha, gamma, eager)
    return {"predicted_ms_per_round": own.round_ms, "predicted_tokens_per_round": own.tokens_per_round}


def timed(
    run: Run, target: PreTrainedModel, draft: PreTrainedModel, prompt: torch.Tensor, new: int, **kwargs: Any
) -> dict:
    """Time a call, with its prefill of one forward; the call before it records or compiles."""
    kwargs = {"do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(prompt)} | kwargs
    body = partial(target.generate, prompt, max_new_tokens=new, **kwargs)
    (first, _), (taken, output) = run.seconds(body), run.seconds(body)
    row = {"tokens_per_s": round(len(prompt) * new / taken, 1), "first_call_s": round(first, 2)}
    row |= {"text_is_right": is_known(output, prompt, target.config.vocab_size), "peak_gb": run.peak_gb()}
    if not row["text_is_right"]:
        run.fail("a known text")
    if "lossy_mode" in kwargs:
        stats = last_stats(target)
        row |= {"tokens_per_round": round(stats.tokens_per_round, 2), "rounds": stats.target_calls}
        row["ms_per_round"] = {x: round(1000 * s / stats.target_calls, 3) for x, s in stats.seconds.items()}
    return row


def _forwards(run: Run, target: PreTrainedModel, draft: PreTrainedModel, prompt: torch.Tensor) -> None:
    """Time forwards alone, eager and as graphs: what a round's time is compared with."""
    for name, model, widths in (("target", target, (1, *(x + 1 for x in GAMMAS))), ("draft", draft, (1, 2))):
        for way in ("eager", "graphs"):
            for width in widths:
                with run.step(f"forwards of the {name}") as begins, torch.no_grad():
                    if not begins or (way == "graphs" and not run.cuda):
                        continue
                    runner = StaticCacheRunner(model, take_slot(model, 256), {})
                    if way == "graphs":
                        runner.prepare(Recording(RECORDERS["cuda"]), Shapes((width,)))
                    runner.run(prompt, 1)
                    start = runner.seen

                    def once(runner=runner, width=width, start=start) -> None:
                        runner.rewind(start)
                        runner.read(prompt[:, :width])

                    once()
                    times = 2 if run.tiny else 20
                    seconds, _ = run.seconds(lambda once=once, times=times: [once() for _ in range(times)])
                    run.say("forward", model=name, way=way, tokens=width, ms=round(1000 * seconds / times, 3))


def _batches(run: Run, target: PreTrainedModel, draft: PreTrainedModel) -> None:
    for rows in (2,) if run.tiny else (8, 32):
        for gamma in (4,):
            with run.step(f"batch of {rows}") as begins:
                if begins:
                    prompt, ours = prompts(run, rows), {"assistant_model": draft, "lossy_mode": "lossless"}
                    new = run.tokens(64)
                    for case, kwargs in {"plain": {}, "lossless": ours | {"num_assistant_tokens": gamma}}.items():
                        run.say(
                            "batch", case=case, rows=rows, alpha=0.8, **timed(run, target, draft, prompt, new, **kwargs)
                        )


def _compiled(run: Run, target: PreTrainedModel, draft: PreTrainedModel, prompt: torch.Tensor, new: int) -> None:
    """Compile once for each shape: ours, and transformers' static assisted generation."""
    gamma = 4 if run.tiny else 8
    backend = {} if run.cuda else {"compile_config": CompileConfig(backend="eager")}
    ours = {"assistant_model": draft, "lossy_mode": "lossless", "num_assistant_tokens": gamma}
    for case, kwargs in {
        "lossless, compiled": {**ours, "lossy_config": {"compile": True}, **backend},
        "transformers, static": {"assistant_model": draft, **_static(run)},
    }.items():
        with run.step(case, 5 if run.tiny else 70) as begins, drafts_of(draft, gamma):
            if begins:
                run.say("speed", case=case, alpha=0.8, gamma=gamma, **timed(run, target, draft, prompt, new, **kwargs))


def _waits(run: Run, target: PreTrainedModel, draft: PreTrainedModel, prompt: torch.Tensor) -> None:
    """Say where the host waits for the device, per round, by torch's own debug mode."""
    ours = {"assistant_model": draft, "lossy_mode": "lossless", "num_assistant_tokens": 4}
    cases = {
        "lossless": {}, "lossless, eager": {"lossy_config": EAGER}, "default length": {"num_assistant_tokens": "auto"},
        "drawn": {"do_sample": True}, "tree": {"lossy_config": {"tree": {"depth": 4, "top_k": 4, "nodes": 16}}},
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


def _waits_of(
    target: PreTrainedModel, prompt: torch.Tensor, count: int, kwargs: dict[str, Any]
) -> tuple[collections.Counter, int]:
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
