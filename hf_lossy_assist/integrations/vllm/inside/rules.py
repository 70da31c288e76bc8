"""The common part of the samplers of both model runners: requests by rule, tables, and the LM head's inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from vllm.utils.torch_utils import async_tensor_h2d

from ....acceptors import DroppedHeads
from ..rounds import EngineStep, Group, KeyedRandomness, RunningRequests, Tables, decide_group
from ..settings import EngineSettings


class Rules:
    """Decides groups of requests, and keeps what the LM head reads."""

    def __init__(self, runner: Any, settings: EngineSettings, tokenizer: Any) -> None:
        # Preempted requests keep their slots.
        self.tables = Tables(max(4096, 4 * runner.max_num_reqs), runner.device)
        seed = runner.model_config.seed or 0
        self.requests = RunningRequests(
            settings, self.tables, tokenizer, seed, lambda x: async_tensor_h2d(x, runner.device)
        )
        self.states: Tensor | None = None
        self.head = runner.model.compute_logits
        runner.model.compute_logits = self._compute_logits

    def _compute_logits(self, states: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
        self.states = states
        return self.head(states, *args, **kwargs)

    def decide(self, groups: list[Group], step: EngineStep, output: Tensor) -> list[Tensor]:
        """Write what the groups keep into ``output`` ``(B, > n)``, and return each group's lengths ``(G,)``."""
        kept = []
        for group in groups:
            tokens, decision = decide_group(group, step, self.tables)
            output[group.index, : tokens.shape[1]] = tokens.to(output.dtype)
            kept.append(decision.n_accepted)
        return kept

    def dropped(
        self, rows: Tensor, process: Callable[[Tensor], Tensor], clean: Callable[[], Tensor]
    ) -> Callable[[DroppedHeads, KeyedRandomness], tuple[Tensor, Tensor]]:
        """Return what runs the dropped heads at ``rows`` of the LM head's inputs, and processes logits as the target's.

        ``clean`` returns the clean head's processed logits there: a grammar has forbidden tokens before the samplers
        see them.
        """

        def run(heads: DroppedHeads, randomness: KeyedRandomness) -> tuple[Tensor, Tensor]:
            states = self.states[rows]
            mask = randomness.keep_mask((len(states), heads.num_paths, states.shape[-1]), heads.dropout, states)
            paths = self.head((states[:, None] * mask).flatten(0, 1)).float().unflatten(0, (len(states), -1))
            every, forbidden = [*paths.unbind(1), paths.mean(1)], clean() == -torch.inf
            every = [process(x.contiguous()).masked_fill(forbidden, -torch.inf) for x in every]
            return torch.stack(every[:-1], dim=1), every[-1]

        return run
