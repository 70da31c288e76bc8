"""transformers' own drafters."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import candidate_generator as _candidates
from transformers.generation.candidate_generator import CandidateGenerator

# The second draws no tokens, whatever the law that it reports.
DRAFTERS_WITHOUT_LOGITS = tuple(
    getattr(_candidates, name)
    for name in ("PromptLookupCandidateGenerator", "SinglePositionMultiTokenCandidateGenerator")
    if hasattr(_candidates, name)
)


# Who wants to choose a model's drafter, in every thread. One attribute serves all of them, whoever leaves first.
_intercepts: weakref.WeakKeyDictionary[PreTrainedModel, dict[int, list[Callable[..., CandidateGenerator]]]] = (
    weakref.WeakKeyDictionary()
)


_intercepts_lock = threading.Lock()


def stock_drafter(
    model: PreTrainedModel,
    generation_config: GenerationConfig,
    input_ids: Any,
    processors: Any,
    model_kwargs: Any,
    assistant_model: PreTrainedModel | None = None,
) -> CandidateGenerator:
    """Return the drafter that stock assisted generation would build."""
    return model._get_candidate_generator(
        assistant_model=assistant_model,
        generation_config=generation_config,
        input_ids=input_ids,
        inputs_tensor=input_ids,
        logits_processor=processors,
        model_kwargs=model_kwargs,
    )


def drafts_from_target_states(assistant: PreTrainedModel | None) -> bool:
    """Tell whether a draft model is one that reads the target's keys and values instead of its own."""
    return type(assistant).__name__.startswith(("Gemma4Assistant", "Gemma4UnifiedAssistant"))


@contextmanager
def intercepted_drafter(model: PreTrainedModel, intercept: Callable[..., CandidateGenerator]) -> Iterator[None]:
    """Inside the block, ask ``intercept(build, **kwargs)`` whenever stock assisted generation wants a drafter.

    ``build(**kwargs)`` returns the drafter that it would have used, and ``kwargs`` are its own arguments. Other
    threads are not affected.
    """
    thread = threading.get_ident()
    with _intercepts_lock:
        by_thread = _intercepts.setdefault(model, {})
        if not by_thread:
            build = model._get_candidate_generator

            def choose(**kwargs: Any) -> CandidateGenerator:
                stack = by_thread.get(threading.get_ident())
                return stack[-1](build, **kwargs) if stack else build(**kwargs)

            model._get_candidate_generator = choose
        by_thread.setdefault(thread, []).append(intercept)
    try:
        yield
    finally:
        with _intercepts_lock:
            by_thread[thread].remove(intercept)
            if not by_thread[thread]:
                del by_thread[thread]
            if not by_thread:
                del model._get_candidate_generator
