"""The papers' regime with real answers: the bundled pair at large sizes; DropMatch's heads; one long text."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.growing.geometry import PRESETS, Geometry
from benchmarks.grown_models import grow_models
from hf_lossy_assist import last_stats, pairs
from hf_lossy_assist.evaluation.modes import Models

from .known_texts import continue_by, is_known, pair_of, prompts
from .run import Run

SIZES = {
    "28 layers of 70B/1B": (Geometry(8192, 28, 64, 8, 128, 28672, 128256), PRESETS["llama-1b"]),
    "8B/1B": (PRESETS["llama-8b"], PRESETS["llama-1b"]),
}
TINY = {"as it is": (Geometry(), Geometry())}
RULES = {"lossless": (8, 5), "judge": (16, 8), "dropmatch": (8, 5), "typical": (8, 16)}
"""Draft lengths for each rule: the best of them counts."""


def real_answers(run: Run) -> None:
    """Time rules on word problems, with the share of right answers of the same texts."""
    for name, (large, small) in (TINY if run.tiny else SIZES).items():
        with run.step(name, 0 if run.tiny else 20) as begins:
            if begins:
                _rules_of(run, name, large, small)
        if run.cuda:
            torch.cuda.empty_cache()


def _rules_of(run: Run, name: str, large: Geometry, small: Geometry) -> None:
    pair = pairs.load("arithmetic", dtype=run.dtype, device=run.device)
    models = grow_models(Models(pair.target, pair.draft, pair.heads), large, small)
    examples, count = pair.task.examples("test", 16), 1 if run.tiny else 8
    run.say("real answers", sizes=name, peak_gb=run.peak_gb())
    heads = {head.config.rule: head for head in models.heads.values()}
    cases = []
    for rule, gammas in RULES.items():
        for gamma in gammas[: 1 if run.tiny else None]:
            given = {"assistant_model": models.draft, "lossy_mode": rule, "num_assistant_tokens": gamma}
            cases.append((rule, gamma, given | ({"lossy_head": heads[rule]} if rule in heads else {})))
    for rule, gamma, kwargs in cases:
        with run.step(f"{rule}, {gamma}", 2) as begins:
            if not begins:
                continue
            right = tokens = rounds = 0
            seconds = 0.0
            for i, example in enumerate(examples[: count + 1]):
                inputs = pair.tokenizer(example.prompt, return_tensors="pt").to(run.device)
                took, output = run.seconds(
                    lambda inputs=inputs, kwargs=kwargs: models.target.generate(
                        **inputs, **kwargs, do_sample=False, max_new_tokens=run.tokens(120)
                    )
                )
                if i == 0:  # it records
                    continue
                text = output[0, inputs.input_ids.shape[1] :]
                right += pair.task.score(example, pair.tokenizer.decode(text, skip_special_tokens=True), "") > 0
                tokens, seconds = tokens + len(text), seconds + took
                rounds += last_stats(models.target).target_calls
            row = {"tokens_per_s": round(tokens / seconds, 1), "tokens_per_round": round(tokens / rounds, 2)}
            run.say("real answers", sizes=name, rule=rule, gamma=gamma, right=f"{right} of {count}", **row)
    _heads(run, name, models)


def _heads(run: Run, name: str, models: Models) -> None:
    """Time an LM head over K + 1 copies of five states, as a share of a forward of the target: DropMatch's table 4."""
    target, head = models.target, models.target.get_output_embeddings()
    with run.step("heads") as begins, torch.no_grad():
        if begins:
            ids = torch.ones(1, 6, dtype=torch.long, device=run.device)
            states = torch.randn(1, 36, target.config.hidden_size, device=run.device, dtype=run.dtype)
            times, found = 2 if run.tiny else 20, {}
            for what, body in {
                "forward": lambda: target(ids),
                "one head": lambda: head(states[:, :6]).float().softmax(-1),
                "six heads": lambda: head(states).float().softmax(-1),
            }.items():
                body()
                found[what], _ = run.seconds(lambda body=body: [body() for _ in range(times)])
            share = (found["six heads"] - found["one head"]) / found["forward"]
            run.say("heads", sizes=name, share_of_a_forward=round(share, 4), paper=0.0164)


def long_text(run: Run) -> None:
    """Decode after one long prompt: time, memory, and what was kept, with the prompt in one piece and in several."""
    length, new = (600, 16) if run.tiny else (16_000, 128)
    target, draft = pair_of(run, positions=32_768)
    continue_by(draft, 0.8)
    prompt = prompts(run, length=length) % target.config.vocab_size
    ours: dict[str, Any] = {"assistant_model": draft, "lossy_mode": "lossless", "num_assistant_tokens": 4}
    cases = {"plain": {}, "lossless": ours, "lossless, in pieces": ours | {"prefill_chunk_size": length // 8}}
    for case, kwargs in cases.items():
        with run.step(f"long text, {case}", 5) as begins:
            if begins:
                run.peak_gb()
                common = {"do_sample": False, "max_new_tokens": new, "pad_token_id": 0}
                seconds, output = run.seconds(
                    lambda kwargs=kwargs, common=common: target.generate(prompt, **common, **kwargs)
                )
                row = {"seconds": round(seconds, 2), "peak_gb": run.peak_gb()}
                row["text_is_right"] = is_known(output, prompt, target.config.vocab_size)
                if kwargs:
                    row["acceptance"] = round(last_stats(target).acceptance_rate, 3)
                run.say("long text", case=case, tokens=length, **row)
