"""The model ``hf-lossy`` of lm-evaluation-harness."""

from __future__ import annotations

from functools import cache
from typing import Any

from transformers import AutoModelForCausalLM

from ..errors import LossyValueError, need
from ..generation.enabling import enable
from ..generation.spelling import Spelling

NAME = "hf-lossy"


@cache
def register() -> type:
    """Register ``hf-lossy`` with lm-evaluation-harness, and return its class.

    It is the harness's own ``hf`` with assisted ``generate_until`` requests. Its ``model_args`` are

    - ``assistant``: the draft, a folder or a Hub id; without it the target decodes alone;
    - ``lossy_mode``: a mode as in ``evaluate --modes``, e.g. ``judge+topk@8:topk.k=3``; ``lossless`` by default;
    - ``lossy_head``: a Hub id or a folder.

    Raises
    ------
    LossyUnsupportedError
        Without ``lm-eval``.
    """
    need("lm-eval", "`lm-eval`")
    from lm_eval.api.registry import register_model
    from lm_eval.models.huggingface import HFLM

    @register_model(NAME)
    class HFLossy(HFLM):
        """A model of Hugging Face, assisted losslessly or lossily."""

        def __init__(
            self,
            pretrained: Any,
            assistant: Any = None,
            lossy_mode: str = "lossless",
            lossy_head: Any = None,
            **options: Any,
        ) -> None:
            if assistant is None and (lossy_mode != "lossless" or lossy_head is not None):
                raise LossyValueError(
                    f"`model_args` has `lossy_mode` {lossy_mode!r} and `lossy_head` {lossy_head!r}, but nothing "
                    "drafts; add an `assistant`"
                )
            super().__init__(pretrained, **options)
            self._lossy: dict[str, Any] = {}
            if assistant is not None:
                if isinstance(assistant, str):
                    draft = AutoModelForCausalLM.from_pretrained(assistant, dtype=self.model.dtype)
                    assistant = draft.to(self.device).eval()
                enable(self.model)
                spelt = Spelling.read(lossy_mode)
                self._lossy = {"assistant_model": assistant, "lossy_head": lossy_head, "tokenizer": self.tokenizer}
                self._lossy |= {"lossy_mode": spelt.mode, "lossy_config": spelt.config}
                self._lossy |= {} if spelt.gamma is None else {"num_assistant_tokens": spelt.gamma}

        def _model_generate(self, context: Any, max_length: int, stop: list[str], **generation_kwargs: Any) -> Any:
            return super()._model_generate(context, max_length, stop, **{**self._lossy, **generation_kwargs})

    return HFLossy
