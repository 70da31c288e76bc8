"""The target: runs one forward over a draft, reads it for the rule, and keeps committed tokens in its cache."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel

from ..acceptors import Acceptor
from ..compat.inputs import text_prefix
from ..compat.positions import FrequencySwitch
from ..core.distributions import Randomness
from ..core.messages import Commit, Draft, TargetOutput, Verification
from ..core.shapes import Shape
from .lm_head_hook import LMHeadHook, NoHook, lm_head_hook
from .processing import process, process_paths
from .runner import ModelRunner, Nodes


class Target:
    """The model that verifies drafts; its runner alone knows cache, mask, positions, and how much has been read.

    With ``keep_raw``, the unprocessed logits are kept for the caller. ``switch`` says where frequencies change with a
    forward's width, which drafts must not cross, and ``columns`` how many of a text the model has positions for.
    """

    def __init__(
        self,
        runner: ModelRunner,
        reader: TargetReader,
        keep_raw: bool = False,
        switch: FrequencySwitch | None = None,
        columns: int | None = None,
    ) -> None:
        self.runner = runner
        self.switch = switch
        self.columns = sys.maxsize if columns is None else columns
        self.reader = reader
        self.keep_raw = keep_raw
        runner.hook = reader.hook

    def room(self, length: int) -> int:
        """Return how many tokens a draft after texts of ``length`` may have."""
        most = min(self.runner.forgettable(length), max(0, self.columns - length))
        return most if self.switch is None else min(most, self.switch.room(length))

    def verify(self, candidate: Tensor, draft: Draft) -> tuple[Verification, TargetOutput]:
        """Run one forward over the part of ``candidate`` ``(B, W + n)`` that the model has not seen."""
        hook, runner, n = self.reader.hook, self.runner, len(draft)
        known = candidate.shape[1] - n - runner.seen
        mask = runner.carried.get(f"{text_prefix(runner.model)}attention_mask")
        keep = n + hook.over(n).wanted(mask, len(candidate), known)
        tree = None if draft.tree is None else Nodes(draft.tree.ancestors, draft.tree.depths)
        outputs = runner.forward(candidate, keep, tree, runner.seen, draft.target_inputs)
        clean, dropped = hook.split(outputs.logits, n)
        raw = clean.to(device=candidate.device, dtype=torch.float32)
        # Processors may overwrite their input, and the raw logits belong to the caller.
        verification = self.reader.answer(candidate, draft, raw.clone() if self.keep_raw else raw, dropped)
        return verification, TargetOutput(outputs, raw if self.keep_raw else None)

    def follow(self, commit: Commit) -> None:
        """Keep the committed tokens of a round where the rows now stand, and forget the rest of the draft."""
        if commit.logits is not None:
            self.runner.follow(commit)
            if commit.shift is not None:
                self.reader.hook.move(commit.shift.index)


@dataclass(eq=False)
class TargetReader:
    """Turns the logits of the target's forward into what rules read."""

    model: PreTrainedModel
    processors: LogitsProcessorList
    acceptor: Acceptor
    do_sample: bool
    randomness: Randomness
    hook: NoHook | LMHeadHook = field(init=False)

    def __post_init__(self) -> None:
        wanted = self.acceptor.needs & {"hidden", "dropped_heads"}
        self.hook = lm_head_hook(self.model, self.randomness, self.acceptor.dropped_heads) if wanted else NoHook()

    def answer(self, candidate: Tensor, draft: Draft, logits: Tensor, dropped: Tensor | None = None) -> Verification:
        """Return the answer that the logits of a forward give.

        ``candidate`` ``(B, L + n)`` holds committed and drafted tokens. ``logits`` ``(B, n + 1, V)`` are float32 and
        may be overwritten; ``dropped`` ``(B, K, n, V)`` are those of dropped heads.
        """
        shape = draft.shape
        # The clean head comes last: processors with a state go on from what it showed them.
        paths, centroid = self._read_dropped(candidate, shape, dropped, logits.device)
        after = process(self.processors, candidate, logits, shape) if self.processors else logits
        positions = shape.positions(after)
        return Verification(
            tokens=draft.tokens,
            logits=positions,
            draft_logits=draft.logits,
            do_sample=self.do_sample,
            randomness=self.randomness,
            hidden=None if self.hook.hidden is None else self.hook.hidden.to(logits.device),
            dropped_logits=paths,
            centroid_logits=centroid,
            draft_hidden=draft.hidden,
            shape=shape,
            logits_after=None if positions is after else after,
        )

    def _read_dropped(
        self, candidate: Tensor, shape: Shape, dropped: Tensor | None, device: torch.device
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return processed logits of the dropped heads, and of their mean where a rule compares it with q.

        ``dropped`` ``(B, K, n, V)`` covers the newest committed token and all drafted tokens but the last.
        """
        if dropped is None:
            return None, None
        paths, centroid = dropped.to(device), None
        if "draft_probs" in self.acceptor.needs:
            centroid = paths.mean(1, dtype=torch.float32)
        if self.processors:
            centroid = None if centroid is None else process(self.processors, candidate, centroid, shape)
            paths = process_paths(self.processors, candidate, paths, shape)
        return shape.at_tokens(paths.transpose(1, 2)).transpose(1, 2), centroid
