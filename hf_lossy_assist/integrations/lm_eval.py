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

    - ``assistant``: the draft, a folder or a Hub id; without it nothing is lossy;
    - ``lossy_mode``: a mode as in ``evaluate --modes``, e.g. ``judge+topk@8:topk.k=3``, which ``gen_kwargs`` may
      override; ``lossless`` by default;
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
            super().__init__(pretrained, **options)
            self._lossy: dict[str, Any] = {}
            if assistant is not None:
                if isinstance(assistant, str):
                    draft = AutoModelForCausalLM.from_pretrained(assistant, dtype=self.model.dtype)
                    assistant = draft.to(self.device).eval()
                enable(self.model)
                self._lossy = {"assistant_model": assistant, "lossy_head": lossy_head, **_fields(lossy_mode)}

        def _model_generate(
            self,
            context: Any,
            max_length: int,
            stop: list[str],
            lossy_mode: str | None = None,
            **generation_kwargs: Any,
        ) -> Any:
            if lossy_mode is not None and not self._lossy:
                raise LossyValueError(
                    f"`gen_kwargs` has `lossy_mode` {lossy_mode!r}, but nothing drafts; give `model_args` "
                    "an `assistant`"
                )
            lossy = self._lossy if lossy_mode is None else self._lossy | _fields(lossy_mode)
            return super()._model_generate(context, max_length, stop, **{**lossy, **generation_kwargs})

    return HFLossy


def _fields(mode: str) -> dict[str, Any]:
    """Return the keywords of ``generate()`` of a mode."""
    spelt = Spelling.read(mode)
    fields = {"lossy_mode": spelt.mode, "lossy_config": spelt.config, "num_assistant_tokens": spelt.gamma}
    return {name: value for name, value in fields.items() if value is not None}
