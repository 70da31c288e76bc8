"""What ``generate()`` has prepared by the time that decoding begins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from .compat import padding_token
from .rows import RowProcessors


@dataclass(frozen=True, eq=False)
class Prepared:
    """One call, ready to decode.

    Attributes
    ----------
    ids
        ``(B, L)`` prompts.
    processors, stopping_criteria, config
        The call's own, everything merged.
    inputs
        The model's inputs besides ``ids``: cache, mask, positions.
    streamer, tokenizer
        As the caller gave them, or None.
    synced_gpus
        Whether all processes have to run as many forwards as the slowest.
    """

    ids: Tensor
    processors: LogitsProcessorList
    stopping_criteria: StoppingCriteriaList
    config: GenerationConfig
    inputs: dict[str, Any]
    streamer: Any = None
    tokenizer: Any = None
    synced_gpus: bool = False

    @property
    def batch(self) -> int:
        return len(self.ids)

    def row(self, row: int) -> Prepared:
        """Return one row of a batch as a call of its own; its inputs hold no cache."""
        ids = self.ids[row : row + 1]
        inputs = {
            name: value[..., row : row + 1, :]
            for name, value in self.inputs.items()
            if isinstance(value, Tensor) and value.dim() > 1 and value.shape[-1] == ids.shape[1]
        }
        processors = LogitsProcessorList([RowProcessors(self.processors, row, self.batch)] if self.processors else [])
        return replace(self, ids=ids, inputs=inputs, processors=processors)

    @property
    def padding(self) -> int:
        """The token that fills rows up; any, where the model has none."""
        return padding_token(self.config)
