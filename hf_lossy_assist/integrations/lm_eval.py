"""The model ``hf-lossy`` of lm-evaluation-harness."""

from __future__ import annotations

from functools import cache
from typing import Any

from transformers import AutoModelForCausalLM

from ..errors import LossyValueError, need
from ..generation.enabling import enable, last_stats
from ..generation.spelling import Spelling, read_gamma, read_settings, split
from ..values import from_json

NAME = "hf-lossy"


@cache
def register() -> type:
    """Register ``hf-lossy`` with lm-evaluation-harness, and return its class.

    It is the harness's own ``hf`` with assisted ``generate_until`` requests. ``gen_kwargs`` may override its
    ``model_args`` by the names of ``generate()``:

    - ``assistant``: the draft, a folder or a Hub id; without it nothing is lossy;
    - ``lossy_mode``: a mode as in ``evaluate --modes``, e.g. ``judge+topk@8``; ``lossless`` by default;
    - ``lossy_config``: more settings, a dict as JSON or as ``KEY=VALUE`` with ``:`` between;
    - ``lossy_head``: a Hub id or a folder;
    - ``num_assistant_tokens``: drafted tokens per round, or ``auto``.

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
            lossy_config: Any = None,
            lossy_head: Any = None,
            num_assistant_tokens: int | str | None = None,
            **options: Any,
        ) -> None:
            super().__init__(pretrained, **options)
            self._lossy: dict[str, Any] = {}
            if assistant is not None:
                if isinstance(assistant, str):
                    draft = AutoModelForCausalLM.from_pretrained(assistant, dtype=self.model.dtype)
                    assistant = draft.to(self.device).eval()
                enable(self.model)
                self._lossy = {"assistant_model": assistant, "lossy_head": lossy_head}
                self._lossy |= _fields(lossy_mode, lossy_config, num_assistant_tokens)
            self._asked = self._lossy
            self._rounds = self._accepted = 0

        def _model_generate(self, context: Any, max_length: int, stop: list[str], **generation_kwargs: Any) -> Any:
            names = {"lossy_mode", "lossy_config"} & generation_kwargs.keys()
            own = {name: generation_kwargs.pop(name) for name in names}
            if own and not self._lossy:
                raise LossyValueError(
                    f"`gen_kwargs` has {sorted(own)}, but nothing drafts; give `model_args` an `assistant`"
                )
            lossy = self._lossy | (_fields(own.get("lossy_mode"), own.get("lossy_config")) if own else {})
            if lossy != self._asked:
                self._asked, self._rounds, self._accepted = lossy, 0, 0
            output = super()._model_generate(context, max_length, stop, **{**lossy, **generation_kwargs})
            if lossy:
                stats = last_stats(self.model)
                self._rounds += stats.rounds
                self._accepted += stats.accepted
            return output

        def get_model_info(self) -> dict[str, Any]:
            """Return the harness's own information and, after a lossy run, its rule and mean accepted tokens."""
            if not self._rounds:
                return super().get_model_info()
            lossy = {name: str(self._asked[name]) for name in ("lossy_mode", "lossy_config")}
            return {**super().get_model_info(), **lossy, "mean_accepted": self._accepted / self._rounds}

    return HFLossy


def _fields(mode: Any, config: Any, gamma: int | str | None = None) -> dict[str, Any]:
    """Return keywords of ``generate()`` from their forms on a command line."""
    spelling = Spelling.read(mode) if isinstance(mode, str) else Spelling(mode)
    if isinstance(config, str):
        as_json = config.startswith("{")
        config = from_json(config, "`lossy_config`") if as_json else read_settings(split(config, ":"), "lossy_config")
    fields = {"lossy_mode": spelling.mode, "lossy_config": {**spelling.config, **(config or {})}}
    gamma = spelling.gamma if gamma is None else read_gamma(str(gamma), "num_assistant_tokens")
    return {name: value for name, value in {**fields, "num_assistant_tokens": gamma}.items() if value is not None}
