"""Assistants for the models that a server loads, and what requests to them may ask for."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer

from ..calibration.watch import Watch
from ..config import FIELDS, parse
from ..custom_generate import wants_rule
from ..drafting.model import check_draft_model
from ..drafting.vocabulary import same_tokenizer
from ..enabling import last_stats
from ..errors import LossyValueError
from ..heads.hub import HUB_REFERENCE
from ..heads.repository import existing_folder
from ..stats import LossyStats

FIELD = "lossy_assistant"
"""The field of a ``generation_config.json`` that names the draft model: a Hub id or a folder."""


Record = Callable[[PreTrainedModel, GenerationConfig | None, LossyStats], None]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """The operator's settings: what replaces a model's generation configuration, and what requests may name.

    Parameters
    ----------
    assistant
        The draft model, as in the field ``lossy_assistant``.
    mode, config, head
        The rule, its settings and its head, as in ``lossy_mode``, ``lossy_config`` and ``lossy_head``.
    allowed_heads
        Heads that a request may name beside the model's own: a request could otherwise have any folder of the machine
        read, or any repository downloaded.
    allow_compile
        Whether a request may have forwards compiled, which takes minutes of the server's time.
    num_assistant_tokens
        Drafted tokens per round, where they are to be others than the model's.
    """

    assistant: str | None = None
    mode: Any = None
    config: Mapping[str, Any] | None = None
    head: str | None = None
    allowed_heads: tuple[str, ...] = ()
    allow_compile: bool = False
    num_assistant_tokens: int | str | None = None

    def apply(self, model: PreTrainedModel) -> None:
        """Write what is set into the generation configuration of a model that the server has loaded for itself."""
        if self.mode is not None:
            # Settings and head of the model's own rule are not this one's.
            model.generation_config.lossy_mode = self.mode
            model.generation_config.lossy_config = None if self.config is None else dict(self.config)
            model.generation_config.lossy_head = self.head
        if self.num_assistant_tokens is not None:
            model.generation_config.num_assistant_tokens = self.num_assistant_tokens
        if self.assistant is not None:
            setattr(model.generation_config, FIELD, self.assistant)


def assist(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    load_model: Callable[..., PreTrainedModel],
    load_tokenizer: Callable[..., PreTrainedTokenizerBase],
    record: Record = lambda *_: None,
) -> PreTrainedModel | None:
    """Let ``model.generate()`` draft with the model that its generation configuration names.

    Only calls with a ``lossy_mode``, their own or the configuration's, and without an assistant of their own; others
    are left alone. The package has to be enabled for the model.

    Parameters
    ----------
    model
        The target. Gets an attribute ``generate`` in front of its class's.
    tokenizer
        The target's. Where the draft has another one, calls have to pass this one, as the server's do.
    load_model, load_tokenizer
        ``load(id_or_folder, revision=...)`` returns the draft's, as ``from_pretrained`` does.
    record
        Is told the model, the ``generation_config`` argument and the statistics of each assisted call.

    Returns
    -------
    PreTrainedModel or None
        The draft model.

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
        parse(mode, *settings, device=model.device)  # now rather than at the first request
        if source is None and config.prompt_lookup_num_tokens is None:
            raise LossyValueError(
                f"`lossy_mode` {mode!r} in the generation configuration of {model.name_or_path!r} needs a drafter; set "
                f"`{FIELD}` there, to the id or folder of a draft model (or `prompt_lookup_num_tokens`)"
            )
    assistant: dict[str, Any] = {"assistant_model": None}
    if source is not None:
        assistant = _load_assistant(model, tokenizer, source, load_model, load_tokenizer)
    certificate = certificate_of(getattr(config, "lossy_config", None))
    watch = None if certificate is None else Watch.of(certificate, warn=logger.warning)
    model.generate = functools.partial(_generate, model=model, assistant=assistant, watch=watch, record=record)
    return assistant["assistant_model"]


def _check_nothing_is_lost(model: PreTrainedModel) -> None:
    """Raise where transformers has passed over our fields in the model's folder, as it does without a word."""
    path = Path(model.name_or_path) / "generation_config.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    lost = [name for name in (*FIELDS, FIELD) if found.get(name) is not None]
    if lost and found.get("_from_model_config"):
        raise LossyValueError(
            f"`{lost[0]}` in {str(path)!r} does not count, because transformers leaves out of a file with "
            "`_from_model_config` all fields that it does not know; remove `_from_model_config` there"
        )


def _location(model: PreTrainedModel, source: Any) -> tuple[str, str]:
    """Return the draft's folder or id, and its revision."""
    where = f"`{FIELD}` of {model.name_or_path!r}"
    if not isinstance(source, str):
        raise LossyValueError(f"{where} has to be a str, a Hub id or a folder, but is {source!r}")
    # A path in a file is meant from where the file is.
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
    """Return the arguments of ``generate()`` for the draft model that ``source`` names."""
    name, revision = _location(model, source)
    try:
        draft = load_model(name, revision=revision)
    except (OSError, ValueError) as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise LossyValueError(
            f"`{FIELD}` of {model.name_or_path!r} has to be a causal language model, but is {source!r}: {reason}"
        ) from error
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


def certificate_of(config: Any) -> Any:
    """Return what a ``lossy_config`` has as its certificate."""
    return config.get("certificate") if isinstance(config, Mapping) else None


class _FlatStreamer(BaseStreamer):
    """A streamer of tokens in one dimension: assisted generation has ``(1, n)``, which a server counts as one token.

    The server's is not told of the end before :meth:`close`, so that the statistics are there when its response ends.
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
    if watch is not None and "lossy_mode" not in kwargs and certificate_of(getattr(asked, "lossy_config", None)):
        watch.add(stats)
    logger.info(
        "%s: %d tokens in %.2f s, %.2f per round, %d kept only by a lossy rule %s",
        model.name_or_path,
        stats.tokens,
        stats.seconds["total"],
        stats.tokens_per_round,
        stats.accepted_lossy,
        dict(stats.accepted_by),
    )
    return output
