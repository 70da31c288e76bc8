"""Draft/target pairs: small bundled models with a task, and a real target from the package index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..acceptors import REGISTRY
from ..compat.inputs import ending_tokens
from ..compat.models import load_errors
from ..drafting.state_head import StateHead
from ..errors import LossyValueError
from ..generation.drafters.dflash import DFlash
from ..generation.drafters.eagle3 import Eagle3
from ..generation.drafters.mtp import mtp_of
from ..heads import Head, ModelIdentity
from ..models.quantised import prepack as prepacked
from ..models.quantised import quantize_draft
from ..tasks import Arithmetic, Example, Task
from ..values import check_name
from . import qwen_coder

NAMES: Mapping[str, type[Task] | None] = {"arithmetic": Arithmetic, "qwen-coder": None}
"""The pairs, each with the task that judges its answers, if it has one."""

ROLES = ("target", "draft")
MTP = "mtp"
"""The ``assistant`` that is the target's own MTP layer."""
_HEADS = ("judge", "judge-code", "verifier")
STATE_HEADS = {"eagle3": Eagle3, "dflash": DFlash}
"""Heads that draft from a target's states, by the name that a pair and its folder give them."""

BUNDLED = Path(__file__).parent / "arithmetic"
"""The folder of the models of ``"arithmetic"``."""


@dataclass(frozen=True, eq=False, repr=False)
class Pair:
    """A target and what drafts for it, with their tokenizer, their heads, and a task for both."""

    target: PreTrainedModel | None  # in evaluation mode; None if it is behind an API only
    draft: PreTrainedModel | StateHead | None = None  # None for the target alone, or with prompt lookup alone
    # Of both models. It pads on the left, and begins a prompt with BOS or has a chat template.
    tokenizer: PreTrainedTokenizerBase | None = None
    task: Task | None = None  # tells right answers from wrong ones; None for a model of general use
    heads: Mapping[str, Head] = field(default_factory=dict)  # by a name of their own, or by the rule that uses them
    lookup: int = 0  # up to so many tokens are looked up first; without a draft, as many as a mode says
    eagle3: Eagle3 | None = None  # a head that drafts for the target, in the draft's place
    dflash: DFlash | None = None  # another one, which drafts a block at once

    def __post_init__(self) -> None:
        if self.draft is not None and self.draft is self.target:
            raise LossyValueError("`draft` has to be another model than the target, which is no faster than itself")

    def __repr__(self) -> str:
        kinds = {role: type(model).__name__ for role in ROLES if (model := getattr(self, role)) is not None}
        shown = {**kinds, "task": self.task and self.task.name, "heads": [*self.heads], "lookup": self.lookup}
        return f"Pair({', '.join(f'{name}={value}' for name, value in shown.items() if value)})"

    @classmethod
    def load(
        cls,
        pair: str | None = None,
        *,
        model: str | None = None,
        assistant: str | None = None,
        dtype: torch.dtype | str | None = None,
        device: torch.device | str | None = None,
        draft_dtype: str | None = None,
        prepack: bool = False,
        heads: Mapping[str, Head] | None = None,
        prompt_lookup: int | None = None,
    ) -> Pair:
        """Load a named pair, or the target ``model`` with the draft ``assistant``.

        The arguments are those of the commands' options; ``heads`` are those of ``--head``, by rule. With a pair, an
        ``assistant`` takes the draft's place: ``"draft"``, ``"eagle3"`` and ``"dflash"`` are its own.

        Examples
        --------
        >>> type(Pair.load("arithmetic", assistant="eagle3").draft).__name__
        'Eagle3'
        """
        if pair is None:
            with load_errors("`model`" if model else "`assistant`", model or assistant):
                tokenizer = AutoTokenizer.from_pretrained(model or assistant)
            loaded = cls(None if model is None else load_model("model", model, dtype, device), tokenizer=tokenizer)
        else:
            loaded = load(pair, dtype=dtype, device=device)
            dtype = dtype or loaded.target.dtype
        target, draft, kept = loaded.target, loaded.draft, loaded.heads
        if assistant is None:
            draft = None if prompt_lookup else draft
        elif pair is None or assistant != "draft":
            draft = getattr(loaded, assistant) if assistant in STATE_HEADS else None
            if draft is None:
                kept, draft = {}, None if assistant == MTP else _draft(assistant, dtype, device, loaded)
        if draft is not None and draft_dtype is not None:
            draft = quantize_draft(draft, draft_dtype)
        if prepack:
            target, draft = target and prepacked(target), draft if draft_dtype else draft and prepacked(draft)
        draft = mtp_of(target) if assistant == MTP else draft
        return replace(loaded, target=target, draft=draft, heads={**kept, **(heads or {})}, lookup=prompt_lookup or 0)

    @property
    def rule_heads(self) -> dict[str, Head]:
        """The heads by rule, as ``lossy_head`` takes them; of several for a rule, the first."""
        by_rule = {head.config.rule: head for head in reversed(self.heads.values())}
        return by_rule | {name: head for name, head in self.heads.items() if name in REGISTRY}

    @property
    def identity(self) -> dict[str, dict[str, Any] | None]:
        """The identities of both models by role; None for one that is not in this process."""
        models = {role: getattr(self, role) for role in ROLES}
        return {role: None if model is None else asdict(ModelIdentity.of(model)) for role, model in models.items()}

    @property
    def only_looks_up(self) -> bool:
        """Whether drafts are looked up in the text, and no model drafts."""
        return self.draft is None and self.lookup > 0

    def encode(self, prompt: str) -> list[int]:
        """Return a prompt's token ids: as the task asks it, else as a user's turn if there is a chat template."""
        if self.task is not None:
            return self.task.encode(Example(prompt, ""), self.tokenizer)
        if self.tokenizer.chat_template:
            turns = [{"role": "user", "content": prompt}]
            return self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
        return self.tokenizer(prompt)["input_ids"]

    def tokens_of(self, text: str, cut: bool) -> list[int]:
        """Return the tokens of an answer's text, and its EOS, unless the task's strings or the longest length ended it.

        Examples
        --------
        >>> pair = load("arithmetic")
        >>> pair.tokenizer.decode(pair.tokens_of(" The answer is 7.", cut=False))
        ' The answer is 7.</s>'
        """
        end = [] if cut or (self.task is not None and self.task.ends) else [self.tokenizer.eos_token_id]
        return [*self.tokenizer(text, add_special_tokens=False)["input_ids"], *end]

    def is_cut(self, tokens: torch.Tensor, text: str, longest: int) -> bool:
        """Tell whether an answer ended by the longest length alone, neither by an EOS nor by the task's strings."""
        ended = int(tokens[-1]) in ending_tokens(self.target.generation_config)
        return len(tokens) >= longest and not (ended or any(end in text for end in self.task.ends))


def load(
    name: str = "arithmetic",
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    folder: str | Path | None = None,
) -> Pair:
    """Load a pair.

    ``"arithmetic"`` is part of the package. The models of ``"qwen-coder"`` come from the Hub. Where no Hub answers,
    they are those that ``make qwen-coder`` has put into the user's cache; its heads are part of the package.

    Parameters
    ----------
    name
        ``"arithmetic"`` or ``"qwen-coder"``.
    dtype
        float32 by default for ``"arithmetic"``, and bfloat16 for ``"qwen-coder"``, as its weights are stored. In
        bfloat16, unlike in float32, near ties can make lossless decoding differ from plain ``generate()``.
    device
        The device of both models; the CPU by default.
    folder
        A folder with ``target`` and ``draft`` instead of the pair's own, and with the heads for them, if any.

    Raises
    ------
    LossyValueError
        If there is no such pair, or its weights are missing or damaged. The message says how to get them.

    Examples
    --------
    >>> from hf_lossy_assist import pairs
    >>> pair = pairs.load("arithmetic")
    >>> pair.task.name, sorted(pair.heads)
    ('arithmetic', ['judge', 'verifier'])
    """
    task = task_of(name)
    _check_device(device)
    folder = None if folder is None else Path(folder)
    if folder is None and name == "qwen-coder":
        sources = qwen_coder.folders()
    else:
        sources = [(folder or BUNDLED) / role for role in ROLES]
        for source in sources:
            if not (source / "model.safetensors").is_file():
                raise LossyValueError(
                    f"`folder` has to hold 'target' and 'draft', each with a model.safetensors, but {str(source)!r} "
                    "has none; make them with `python -m benchmarks.train_pair`"
                )
    places = {x: hub_cards() / f"{name}-{x}" if folder is None else folder / x for x in (*_HEADS, *STATE_HEADS)}
    dtype = dtype or (torch.bfloat16 if name == "qwen-coder" else torch.float32)
    target, draft = (load_model("folder", source, dtype, device) for source in sources)
    there = [x for x, place in places.items() if place.is_dir()]
    return Pair(
        target,
        draft,
        AutoTokenizer.from_pretrained(sources[0], padding_side="left"),
        task,
        {x: Head.from_pretrained(places[x]).to(target.device) for x in _HEADS if x in there},
        **{
            x: kind.from_pretrained(places[x], dtype=target.dtype).to(target.device)
            for x, kind in STATE_HEADS.items()
            if x in there
        },
    )


def load_model(
    argument: str, source: str | Path, dtype: torch.dtype | str | None = None, device: torch.device | str | None = None
) -> PreTrainedModel:
    """Load the model that an ``argument`` names; on the device ``"auto"`` it is spread."""
    _check_device(device)
    spread = device == "auto"
    with load_errors(f"`{argument}`", str(source)):
        model = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype or "auto", **({"device_map": "auto"} if spread else {})
        )
    return model.eval() if spread else model.to(device or "cpu").eval()


def _check_device(device: torch.device | str | None) -> None:
    """Refuse a device that is not here, before anything is read."""
    try:
        torch.empty(0, device=None if device == "auto" else device)
    except (AssertionError, RuntimeError) as error:
        here = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        raise LossyValueError(f"`device` has to be auto or one that is here, {here}, but is {device!r}") from error


def _check_tokenizer(assistant: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a draft whose own tokenizer means other tokens by the same numbers."""
    try:
        own = AutoTokenizer.from_pretrained(assistant)
    except (OSError, ValueError):
        return  # drafts without a tokenizer have the target's; loading the model raises a better error
    ours, theirs = ({i: token for token, i in x.get_vocab().items()} for x in (tokenizer, own))
    # Tokens that were added are often renamed, and mean the same.
    added = {*tokenizer.get_added_vocab().values(), *own.get_added_vocab().values()}
    if differ := sum(token != theirs.get(i, token) for i, token in ours.items() if i not in added):
        raise LossyValueError(
            f"`assistant` ({assistant!r}) has to share the target's tokenizer, but means other tokens by {differ:,} "
            "numbers; choose another draft, or in Python pass both tokenizers to `generate()`"
        )


def _draft(
    assistant: str, dtype: torch.dtype | str | None, device: torch.device | str | None, loaded: Pair
) -> PreTrainedModel | StateHead:
    try:
        values, _ = PretrainedConfig.get_config_dict(assistant)
    except OSError:
        values = {}  # loading the model raises a better error
    kind = next((x for x in STATE_HEADS.values() if x.config_class.describes(values)), None)
    if kind is None:
        _check_tokenizer(assistant, loaded.tokenizer)
        return load_model("assistant", assistant, dtype, device)
    dtype = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    head = kind.from_pretrained(assistant, dtype=dtype)
    if device == "auto":
        device = None if loaded.target is None else loaded.target.device
    return head.to(device or "cpu")


def at_hand(name: str) -> bool:
    """Return whether a pair can be loaded without a download.

    Examples
    --------
    >>> at_hand("arithmetic")
    True
    """
    task_of(name)
    return name != "qwen-coder" or qwen_coder.at_hand()


def task_of(name: str) -> Task | None:
    """Return a pair's task, or None if it has none."""
    check_name("name", name, NAMES)
    task = NAMES[name]
    return None if task is None else task()


def hub_cards() -> Path:
    """Return the folder of what stands on the Hub: inside an installed package, and beside it in a checkout.

    Examples
    --------
    >>> (hub_cards() / "arithmetic-judge" / "model.safetensors").is_file()
    True
    """
    package = Path(__file__).parents[1]
    inside = package / "hub_cards"
    return inside if inside.is_dir() else package.parent / "hub_cards"


__all__ = ["NAMES", "ROLES", "Pair", "at_hand", "hub_cards", "load", "task_of"]
