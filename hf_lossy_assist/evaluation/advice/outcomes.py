"""What a rule's kept tokens do to answers: how many right ones it loses and how many it wins, from labels.

``lossy-assist mine`` labels mismatches by whether the draft's token changes the answer, and whether the answer is right
then. A rule decides each of them, by both models' heads on the states that were mined.

The model: along a text a rule keeps m tokens that the target would not have written. Each changes the answer with a
probability π of the problem. A right answer that changes is wrong. A wrong one that changes is right with probability
r. Changes are independent given π, so after m of them a right answer is wrong with probability

    (1 - E (1 - (1 + r) π)^m) / (1 + r),

and a wrong one is right with r times that. Labels of a problem repeat each other: (1 + r) π is Beta distributed over
problems, of which those that the target solves and the others have their own laws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...acceptors import Acceptor
from ...core.messages import Verification
from ...errors import LossyValueError
from ...heads.identity import differing_models
from ...models.reading import forward
from ...store.folder import read_manifest
from ...store.shards import rows_that_count
from ..modes import Models
from ..quality import Interval
from .text_logits import reduced

DRAWS = 400
"""Bootstrap samples of the labelled problems, and of the texts."""
_TOGETHER = 64
# What is tried: means of π, and how alike the labels of a problem are, their correlation.
_MEAN_ALIKE = np.array(
    [
        (1 / (1 + math.exp(-x / 8)), alike)
        for x in range(-72, 40)
        for alike in (0.002, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8)
    ]
).T
_BETAS = np.stack([_MEAN_ALIKE[0], 1 - _MEAN_ALIKE[0]]) * (1 / _MEAN_ALIKE[1] - 1)
_KINDS = {"kind": str, "task": str, "draft": dict, "settings": dict, "runs": list}


@dataclass(frozen=True, eq=False)
class Labelled:
    """N labelled mismatches of K problems.

    Attributes
    ----------
    problems
        ``(N,)`` each one's problem, from 0 to K - 1.
    important, right
        ``(N,)`` whether the draft's token changes the answer, and whether that is right then, NaN if not known.
    weights
        ``(N,)`` how many mismatches of the problem each stands for.
    solved
        ``(K,)`` whether the target solves the problem.
    p, q, x
        ``(N, C)`` logits of both models over a position's candidates, and ``(N,)`` the drafted token among these.
    """

    problems: np.ndarray
    important: np.ndarray
    right: np.ndarray
    weights: np.ndarray
    solved: np.ndarray
    p: Tensor
    q: Tensor
    x: Tensor

    @classmethod
    def read(cls, folder: str | Path, models: Models, task: str | None = None) -> Labelled:
        """Read what ``lossy-assist mine --labels judge`` has written for these models.

        Raises
        ------
        LossyValueError
            If the folder has no such labels, or those of other models or another ``task``.
        """
        tables = _tables(Path(folder), models, task)
        rows = {name: tables["tokens"][name] for name in tables["tokens"].column_names}
        prompts = dict(zip(*(tables["prompts"][name].to_pylist() for name in ("prompt_id", "solved")), strict=True))
        owners, problems = np.unique(rows["prompt_id"].to_numpy(), return_inverse=True)
        solved = [prompts[owner] for owner in owners.tolist()]
        if None in solved:
            raise LossyValueError(
                f"`labels` has to say which problems the target solves, but {str(folder)!r} has problems without "
                "references; mine a task with answers"
            )
        right = rows["right"].to_pylist() if "right" in rows else [None] * len(problems)
        laws = [
            _logits(model, rows[f"{role}_previous"])
            for role, model in (("target", models.target), ("draft", models.draft))
        ]
        drafted = torch.tensor(rows["draft_token"].to_pylist())
        parts = [
            reduced(p[:, : q.shape[-1]], q[:, : p.shape[-1]], own)
            for p, q, own in zip(*laws, drafted.split(_TOGETHER), strict=True)
        ]
        return cls(
            problems, rows["important"].to_numpy(), np.array([np.nan if x is None else x for x in right], dtype=float),
            rows["weight"].to_numpy().astype(float), np.array(solved),
            *(torch.cat([part[name] for part in parts]) for name in ("p", "q", "written")),
        )  # fmt: skip

    def kept(self, rule: Acceptor, gamma: int) -> np.ndarray | None:
        """Return ``(N,)`` how often a rule keeps each mismatch of a draft of ``gamma`` tokens; None where that is open.

        A rule that looks at other tokens of the draft finds that they match; the mismatch stands at every place.
        """
        if rule.needs - {"draft_probs", "draft_or_point_mass"} or rule.unverified_drafting is not None:
            return None
        places = range(gamma if rule.reads_draft else 1)
        keep = torch.zeros(len(self.x), dtype=torch.float64)
        best = self.p.argmax(-1)
        for i in places:
            p, q = (law[:, None].repeat(1, len(places) + 1, 1) for law in (self.p, self.q))
            tokens = best[:, None].repeat(1, len(places))
            tokens[:, i] = self.x
            keep += rule.keep(Verification(tokens, p, draft_logits=q[:, :-1]))[:, i]
        return (keep / len(places)).numpy()

    @cached_property
    def times(self) -> np.ndarray:
        """``(D + 1, K)`` how often each problem counts: once, and in bootstrap samples."""
        return resampled(len(self.solved), 0)

    @cached_property
    def again(self) -> np.ndarray:
        """``(D + 1,)`` r: the share of the changed answers of unsolved problems that are right; NaN if not known."""
        changed = self.important & ~self.solved[self.problems] & ~np.isnan(self.right)
        sums = (self._of_problems(changed * self.weights * x) for x in (np.nan_to_num(self.right), 1.0))
        won, all_ = (self.times @ each for each in sums)
        return np.divide(won, all_, out=np.full(len(won), np.nan), where=all_ > 0)

    def _of_problems(self, values: np.ndarray) -> np.ndarray:
        """Return ``(K,)`` sums over the labels of each problem."""
        return np.bincount(self.problems, weights=values, minlength=len(self.solved))

    def outcomes(self, kept: np.ndarray, others: np.ndarray, solved: np.ndarray | None = None) -> dict[str, Interval]:
        """Return how many of 100 answers become wrong, ``lost``, and right, ``won``, with 95 % intervals.

        ``others`` ``(B,)`` are the tokens that the rule keeps of each text and that the target would not have written,
        and ``solved`` ``(B,)`` tells which of the target's answers are right; by default, that is as likely as among
        the labelled problems. ``kept`` ``(N,)`` is how the rule decides the labels. Intervals are over these problems
        and over the texts. ``won`` is missing where the labels do not say which changed answers are right.
        """
        texts = resampled(len(others), 1)
        right = (self.times @ self.solved / self.times.sum(1))[:, None] if solved is None else solved
        again = np.nan_to_num(self.again)
        found = {}
        for name, group, share, factor in (
            ("lost", self.solved, right, 1.0),
            ("won", ~self.solved, 1 - right, self.again),
        ):
            changed = (texts * share * self._changed(kept, group, again, others)).sum(1) / texts.sum(1)
            values = 100 * factor * changed / (1 + again)
            if not np.isnan(values[0]):
                found[name] = (float(values[0]), *map(float, np.nanquantile(values[1:], (0.025, 0.975))))
        return found

    def _changed(self, kept: np.ndarray, group: np.ndarray, again: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Return ``(D + 1, B)`` 1 - E (1 - (1 + r) π)^m, where π is Beta distributed over a group of problems.

        Mean and spread are the likeliest ones for how many of each problem's kept labels are important.
        """
        n, x = (torch.from_numpy(self._of_problems(part))[:, None] for part in (kept, kept * self.important))
        a, b = (torch.from_numpy(part) for part in (_BETAS[0], _BETAS[1]))
        likely = _log_beta(a + x, b + n - x) - _log_beta(a, b)
        mean, alike = _MEAN_ALIKE[:, ((self.times * group) @ likely.numpy()).argmax(1)]
        mean = np.minimum((1 + again) * mean, 1 - 1e-6)
        a, b = (torch.from_numpy(part * (1 / alike - 1))[:, None] for part in (mean, 1 - mean))
        return 1 - (_log_beta(a, b + torch.from_numpy(np.asarray(others, dtype=float))) - _log_beta(a, b)).exp().numpy()


def _log_beta(a: Tensor, b: Tensor) -> Tensor:
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)


def resampled(count: int, seed: int) -> np.ndarray:
    """Return ``(D + 1, count)``: each thing once, then how often bootstrap samples have it."""
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=DRAWS)
    return np.concatenate([np.ones((1, count)), drawn])


def _tables(folder: Path, models: Models, task: str | None) -> dict[str, pa.Table]:
    manifest = read_manifest(folder, "mine", _KINDS, "labels")
    found = differing_models(manifest, {"target": models.target, "draft": models.draft})
    if manifest["kind"] != "judge":
        found.append(f"the labels are of the kind {manifest['kind']!r}, not 'judge'")
    if task not in (None, manifest["task"]):
        found.append(f"of the task, the name was {manifest['task']!r} and is {task!r}")
    if found:
        raise LossyValueError(
            f"`labels` has to be a folder of `lossy-assist mine --labels judge` for these models and this task, but in "
            f"{str(folder)!r} {'; '.join(found)}; mine labels for what you advise on"
        )
    parts = rows_that_count(folder)
    if not any(len(part["tokens"]) for part in parts):
        raise LossyValueError(f"`labels` has to hold labelled mismatches, but {str(folder)!r} has none; mine more")
    names = ("tokens", "prompts")
    return {x: pa.concat_tables([part[x] for part in parts], promote_options="default") for x in names}


@torch.inference_mode()
def _logits(model: PreTrainedModel, states: Any) -> Iterator[Tensor]:
    """Yield logits ``(n, V)`` of a column of states, with all that the model does to them after its head."""
    flat = states.combine_chunks()
    rows = torch.from_numpy(flat.flatten().to_numpy(zero_copy_only=False).reshape(len(flat), -1).copy())
    head, ids = model.get_output_embeddings(), torch.zeros((1, 1), dtype=torch.long, device=model.device)
    for part in rows.split(_TOGETHER):
        given = part[None].to(head.weight.device, model.dtype)
        hook = head.register_forward_pre_hook(lambda module, args, given=given: (given, *args[1:]))
        try:
            yield forward(model, ids, torch.ones_like(ids)).logits[0].float().cpu()
        finally:
            hook.remove()
