"""Algorithm 1 as printed, without any reuse: every continuation is a ``generate()`` from scratch."""

from __future__ import annotations

import torch


def generate(model, ids: list[int], room: int) -> list[int]:
    """Return what ``model`` adds to ``ids``, at most ``room`` tokens."""
    if room == 0:
        return []
    prompt = torch.tensor([ids])
    output = model.generate(
        input_ids=prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=room, pad_token_id=0
    )
    return output[0, len(ids) :].tolist()


def choices(model, prompt: list[int], response: list[int]) -> list[int]:
    """Return the model's likeliest token at every position of a response."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + response]), use_cache=False).logits[0]
    return logits.argmax(-1)[len(prompt) - 1 : -1].tolist()


def important_tokens(target, draft, prompt, eos, t_max, answer, equivalent, *, generate=generate, choices=choices):
    """Return the first response, the last one, and ``(t, y_t, draft's token, important)`` of every mismatch.

    None where the first response has no answer.
    """
    y = first = generate(target, prompt, t_max)
    alpha = answer(y)
    if alpha is None:
        return None
    y_draft = choices(draft, prompt, y)
    mismatches = []
    t = -1
    while True:
        rest = [i for i in range(len(y)) if y[i] != y_draft[i] and i > t]
        if not rest:
            return first, y, mismatches
        t = min(rest)
        y_new = [*y[:t], y_draft[t]]
        if y_new[-1] not in eos:
            y_new += generate(target, prompt + y_new, t_max - len(y_new))
        same = equivalent(alpha, answer(y_new))
        mismatches.append((t, y[t], y_draft[t], not same))
        if same:
            y = y_new
            y_draft = choices(draft, prompt, y)
