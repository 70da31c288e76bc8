"""Assistants for the models that a server loads."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer

from ...calibration.watch import Watch
from ...call.config import FIELDS, parse
from ...compat import load_errors
from ...core.statistics import LossyStats
from ...custom_generate import wants_rule
from ...drafting.model import check_draft_model
from ...drafting.vocabulary import same_tokenizer
from ...enabling import last_stats
from ...errors import LossyValueError
from ...heads.repository import HUB_REFERENCE, existing_folder
from .settings import FIELD, nested

Record = Callable[[PreTrainedModel, GenerationConfig | None, LossyStats], None]

logger = logging.getLogger(__name__)


def assist(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    load_model: Callable[..., PreTrainedModel],
    load_tokenizer: Callable[..., PreTrainedTokenizerBase],
    record: Record = lambda *_: None,
) -> PreTrainedModel | None:
    """Let ``model.generate()`` draft with the model that its generation configuration names; return that model.

    This changes calls with a ``lossy_mode`` (their own or the configuration's) that bring no assistant. The package has
    to be enabled for the model.

    Parameters
    ----------
    model
        The target, which gets an instance attribute ``generate``.
    tokenizer
        The target's. If the draft has another one, calls have to pass this one, as the server does.
    load_model, load_tokenizer
        ``load(id_or_folder, revision=...)`` returns the draft's, as ``from_pretrained`` does.
    record
        Receives the model, the ``generation_config`` argument and the statistics of each assisted call.

    Examples
    --------
    >>> from transformers import AutoModelForCausalLM, AutoTokenizer
    >>> import hf_lossy_assist
    >>> pair = hf_lossy_assist.pairs.load("arithmetic")
    >>> pair.target.generation_config.lossy_assistant = pair.draft.name_or_path
    >>> pair.target.generation_config.lossy_mode = "topk"
    >>> draft = assist(
    ...     pair.target, pair.tokenizer, AutoModelForCausalLM.from_pretrained, AutoTokenizer.from_pretrained
    ... )
    >>> inputs = pair.tokenizer("Tom has 3 apples.", return_tensors="pt")
    >>> with hf_lossy_assist.enabled(pair.target):
    ...     _ = pair.target.generate(**inputs, max_new_tokens=10)
    >>> hf_lossy_assist.last_stats(pair.target).drafted > 0
    True
    """
    config = model.generation_config
    mode, source = getattr(config, "lossy_mode", None), getattr(config, FIELD, None)
    if mode is None and source is None:
        _check_nothing_is_lost(model)
    if mode is not None:
        settings = (getattr(config, name, None) for name in ("lossy_config", "lossy_head"))
        parse(mode, *settings, device=model.device)  # refuse it now rather than at the first request
        if source is None and config.prompt_lookup_num_tokens is None:
            raise LossyValueError(
                f"`lossy_mode` {mode!r} in the generation configuration of {model.name_or_path!r} needs a drafter; set "
                f"`{FIELD}` there, to the id or folder of a draft model (or `prompt_lookup_num_tokens`)"
            )
    assistant: dict[str, Any] = {"assistant_model": None}
    if source is not None:
        assistant = _load_assistant(model, tokenizer, source, load_model, load_tokenizer)
    certificate = nested(getattr(config, "lossy_config", None), "certificate")
    watch = None if certificate is None else Watch.of(certificate, warn=logger.warning)
    model.generate = functools.partial(_generate, model=model, assistant=assistant, watch=watch, record=record)
    return assistant["assistant_model"]


def _check_nothing_is_lost(model: PreTrainedModel) -> None:
    """Raise if transformers has silently dropped our fields in the model's folder."""
    path = Path(model.name_or_path) / "generation_config.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    lost = [name for name in (*FIELDS, FIELD) if found.get(name) is not None]
    if lost and found.get("_from_model_config"):
        raise LossyValueError(
            f"`{lost[0]}` in {str(path)!r} has no effect, because transformers ignores unknown fields in a file with "
            "`_from_model_config`; remove `_from_model_config` there"
        )


def _location(model: PreTrainedModel, source: Any) -> tuple[str, str]:
    """Return the draft's folder or id, and its revision."""
    where = f"`{FIELD}` of {model.name_or_path!r}"
    if not isinstance(source, str):
        raise LossyValueError(f"{where} has to be a str, a Hub id or a folder, but is {source!r}")
    # A path in a file is relative to that file.
    beside = existing_folder(Path(model.name_or_path) / source)
    folder = existing_folder(source) if beside is None else beside
    if folder is not None:
        return str(folder), "main"
    match = HUB_REFERENCE.fullmatch(source)
    if match is None:
        raise LossyValueError(f"{where} is {source!r}, which is neither a folder nor an id on the Hub, 'org/name'")
    return match["id"], match["revision"] or "main"


def _load_assistant(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source: Any,
    load_model: Callable[..., PreTrainedModel],
    load_tokenizer: Callable[..., PreTrainedTokenizerBase],
) -> dict[str, Any]:
    """Return ``generate()``'s arguments for the draft model that ``source`` names."""
    name, revision = _location(model, source)
    with load_errors(f"`{FIELD}` of {model.name_or_path!r}", source):
        draft = load_model(name, revision=revision)
    try:
        own = load_tokenizer(name, revision=revision)
    except (OSError, ValueError):
        own = tokenizer  # a draft without one was made for the target's
    assistant = {"assistant_model": draft}
    if same_tokenizer(tokenizer, own):
        check_draft_model(model, draft)
    else:
        assistant["assistant_tokenizer"] = own
    logger.info("%s is assisted by %s", model.name_or_path, name)
    return assistant


class _FlatStreamer(BaseStreamer):
    """Passes tokens on in one dimension: a server counts assisted generation's ``(1, n)`` as one token.

    The server's streamer ends with :meth:`close`, so that the statistics exist when its response ends.
    """

    def __init__(self, streamer: BaseStreamer) -> None:
        self.streamer = streamer

    def put(self, value: Tensor) -> None:
        self.streamer.put(value.reshape(-1))

    def end(self) -> None:
        pass

    def close(self) -> None:
        self.streamer.end()


def _generate(
    *args: Any,
    model: PreTrainedModel,
    assistant: Mapping[str, Any],
    watch: Watch | None,
    record: Record,
    **kwargs: Any,
) -> Any:
    if not wants_rule(model, kwargs):
        return type(model).generate(model, *args, **kwargs)
    if kwargs.get("assistant_model") is None:
        kwargs |= assistant
    if (streamer := kwargs.get("streamer")) is not None:
        kwargs["streamer"] = _FlatStreamer(streamer)
    output = type(model).generate(model, *args, **kwargs)
    stats = last_stats(model)
    record(model, kwargs.get("generation_config"), stats)
    if streamer is not None:
        kwargs["streamer"].close()
    asked = kwargs.get("generation_config") or model.generation_config
    certified = nested(getattr(asked, "lossy_config", None), "certificate")
    if watch is not None and certified and "lossy_mode" not in kwargs:
        watch.add(stats)
    logger.info(
        "%s: %d tokens in %.2f s, %.2f per round, %d kept only by a lossy rule %s",
        model.name_or_path,
        stats.tokens,
        stats.seconds["total"],
        stats.tokens_per_round,
        stats.accepted_lossy,
        stats.accepted_lossy_by,
    )
    return output
