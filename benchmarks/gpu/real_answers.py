"""The papers' regime with real answers: the bundled pair at large sizes; DropMatch's heads; one long text."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks.growing.geometry import PRESETS, Geometry
from benchmarks.grown_models import grow_models
from hf_lossy_assist import last_stats, pairs
from hf_lossy_assist.evaluation.quality import paired_interval
from hf_lossy_assist.pairs import Pair
from hf_lossy_assist.tasks import Example

from .known_texts import is_known, pair_of, prompts
from .run import Row, Run, rounded

EIGHT = ("8B/1B", PRESETS["llama-8b"], PRESETS["llama-1b"])
SEVENTY = ("28 layers of 70B/1B", Geometry(8192, 28, 64, 8, 128, 28672, 128256), PRESETS["llama-1b"])
TINY = ("as it is", Geometry(), Geometry())
PLAIN = "no drafts"
RULES = {PLAIN: 0, "lossless": 5, "judge": 8, "dropmatch": 8, "typical": 16}
"""The draft length at which each rule was fastest."""


def answers(run: Run) -> None:
    """Time rules on word problems, with the share of right answers of the same texts."""
    _rules_of(run, "answers", TINY if run.tiny else EIGHT, 64)


def large(run: Run) -> None:
    """The same on fewer problems, with as many layers of a 70B as fit."""
    _rules_of(run, "large", TINY if run.tiny else SEVENTY, 16)


def _rules_of(run: Run, part: str, sizes: tuple[str, Geometry, Geometry], count: int) -> None:
    name, *shapes = sizes
    pair = pairs.load("arithmetic", dtype=run.dtype, device=run.device)
    models = grow_models(pair, *shapes)
    heads = models.rule_heads
    warm, *examples = pair.task.examples("test", 3 if run.tiny else count + 1)

    def measure(rule: str, example: Example) -> Row:
        kwargs = {"lossy_mode": "lossless" if rule == PLAIN else rule, "num_assistant_tokens": RULES[rule]}
        kwargs |= {"assistant_model": models.draft} | ({"lossy_head": heads[rule]} if rule in heads else {})
        inputs = pair.tokenizer(example.prompt, return_tensors="pt").to(run.device)
        seconds, output = run.seconds(
            lambda: models.target.generate(**inputs, **kwargs, do_sample=False, max_new_tokens=run.tokens(120))
        )
        text = output[0, inputs.input_ids.shape[1] :]
        right = pair.task.score(example, pair.tokenizer.decode(text, skip_special_tokens=True), "") > 0
        stats = last_stats(models.target)
        row = {"text": example.prompt[:40], "tokens": len(text), "seconds": round(seconds, 5), "right": int(right)}
        return row | {"kept": stats.accepted, "rounds": stats.target_calls}

    cases = {}
    for rule in RULES:
        with run.step(f"{part}, {rule}") as begins:
            if begins:
                measure(rule, warm)  # it records
                cases[rule] = partial(measure, rule)
    run.say(part, sizes=name, rules=list(cases), peak_gb=run.peak_gb())
    rows = run.interleaved(part, cases, examples, sizes=name)
    if not rows.get(PLAIN):
        return
    run.compare(part, rows, PLAIN, sizes=name)
    for rule, own in rows.items():
        right, plain = ([row["right"] for row in x] for x in (own, rows[PLAIN]))
        row = {"right": sum(right), "n": len(own), "difference": rounded(paired_interval(right, plain))}
        run.say(part, case=rule, gamma=RULES[rule], summary=True, sizes=name, **row)
    _heads(run, name, models)


def _heads(run: Run, name: str, models: Pair) -> None:
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
    target, draft = pair_of(run, 0.8, positions=32_768)
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
