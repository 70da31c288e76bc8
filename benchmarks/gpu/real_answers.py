"""The papers' regime with real answers: the bundled pair at large sizes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from hf_lossy_assist import last_stats, pairs
from hf_lossy_assist.evaluation.quality import paired_interval
from hf_lossy_assist.tasks import Example

from .growing import PRESETS, Geometry, grow_pair
from .run import Row, Run, rounded
from .speed import PLAIN

RULES = {PLAIN: 0, "lossless": 8, "judge": 8, "dropmatch": 8, "typical": 16}
"""The draft length at which each rule was fastest."""


def answers(run: Run) -> None:
    """Time rules on word problems, with the share of right answers of the same texts."""
    _rules_of(run, "answers", "8B/1B", PRESETS["llama-8b"], 64)


def large(run: Run) -> None:
    """The same on fewer problems, with as many layers of a 70B as fit."""
    _rules_of(run, "large", "28 layers of 70B/1B", replace(PRESETS["llama-70b"], num_hidden_layers=28), 16)


def _rules_of(run: Run, part: str, name: str, target: Geometry, count: int) -> None:
    pair = pairs.load("arithmetic", dtype=run.dtype, device=run.device)
    models, name = (pair, "as it is") if run.tiny else (grow_pair(pair, target, PRESETS["llama-1b"]), name)
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
