"""Models, prompts and contenders of ``lossy-assist bench``, from its options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from .. import pairs
from ..acceptors import REGISTRY
from ..bench.contenders import Contender, Models, StockAssisted, TargetAlone, WithRule, fixed, rule_names
from ..bench.geometry import Geometry
from ..bench.growing import MIN_RESERVED, grow
from ..bench.grown_heads import grow_head
from ..bench.prompts import STORY_OPENINGS
from ..bench.trials import Batch
from ..config import head_type, place_head
from ..errors import LossyValueError
from ..tasks import Example, Task
from .generate import parse_config
from .options import pretrained

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, eq=False)
class Cast:
    """Who generates, and from what.

    Attributes
    ----------
    models
        As loaded.
    tokenizer, task
        Of the models; no task for models whose answers can't be judged.
    texts
        Prompts of one's own, or openings of stories, where there is no task.
    """

    models: Models
    tokenizer: PreTrainedTokenizerBase
    task: Task | None = None
    texts: Sequence[str] = field(default=STORY_OPENINGS)

    def examples(self, n: int) -> list[Example]:
        """Return the first ``n`` prompts."""
        if self.task is not None:
            return self.task.examples("test", n)
        return [Example(text, "") for text in self.texts[:n]]

    def encode(self, examples: Sequence[Example]) -> list[list[int]]:
        """Return the token ids of every prompt."""
        if self.task is not None:
            return [self.task.encode(example, self.tokenizer) for example in examples]
        return self.tokenizer([example.prompt for example in examples])["input_ids"]


def load_cast(
    *,
    pair: str | None,
    folder: Path | None,
    model: str | None,
    assistant: str | None,
    heads: Sequence[str],
    prompt_file: Path | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Cast:
    """Load what the options name."""
    if (model is None) != (assistant is None) or (model is not None and (pair or folder)):
        raise LossyValueError(
            f"`--model` and `--assistant` have to be given together and without `--pair`, but are {model!r} and "
            f"{assistant!r}"
        )
    if model is None:
        loaded = pairs.load(pair or "arithmetic", dtype=dtype, device=device, folder=folder)
        found = {**loaded.rule_heads, **load_heads(heads, device)}
        cast = Cast(Models(loaded.target, loaded.draft, found), loaded.tokenizer, loaded.task)
    else:
        target, draft = (
            pretrained(option, source, AutoModelForCausalLM, dtype=dtype).to(device).eval()
            for option, source in (("--model", model), ("--assistant", assistant))
        )
        tokenizer = pretrained("--model", model, AutoTokenizer)
        cast = Cast(Models(target, draft, load_heads(heads, device)), tokenizer)
    if prompt_file is None:
        return cast
    lines = [line for line in prompt_file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        raise LossyValueError(f"`--prompt-file` has to hold one prompt a line, but {str(prompt_file)!r} has none")
    return dataclasses.replace(cast, task=None, texts=lines)


def grow_models(models: Models, target: Geometry, draft: Geometry, dtype: torch.dtype, device: torch.device) -> Models:
    """Return the models in other geometries; heads grow along, and a draft to the target's vocabulary."""
    if target == draft == Geometry():
        return models
    grown = _grown(models.target, target, dtype, device)
    vocab = grown.config.vocab_size
    if draft.vocab is None and vocab != models.draft.config.vocab_size:
        draft = _room_for(vocab, draft, models.draft)
    small = _grown(models.draft, draft, dtype, device)
    heads = {name: grow_head(head, grown, small) for name, head in models.heads.items()}
    return Models(grown, small, heads)


def _grown(model: PreTrainedModel, wanted: Geometry, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    return model if wanted == Geometry() else grow(model, wanted, dtype=dtype, device=device)


def _room_for(vocab: int, wanted: Geometry, draft: PreTrainedModel) -> Geometry:
    """Give a draft the target's vocabulary, and the few hidden dimensions that padding it needs."""
    own = Geometry.of(draft.config)
    heads = wanted.heads or own.heads
    hidden = wanted.hidden or -(-(own.hidden + MIN_RESERVED) // heads) * heads
    return dataclasses.replace(wanted, vocab=vocab, hidden=hidden, head_dim=wanted.head_dim or own.head_dim)


def batches_of(
    prompts: Sequence[Sequence[int]], size: int, length: int | None, pad: int, device: torch.device
) -> list[Batch]:
    """Put prompts into batches, padded on the left.

    Parameters
    ----------
    prompts
        Token ids.
    size
        Prompts per batch.
    length
        Make every prompt so long: by its own beginning again, or by leaving out what follows the first token.
    pad
        The padding token.
    device
        Where the batches go.
    """
    if length is not None:
        prompts = [_resized(list(ids), length) for ids in prompts]
    batches = []
    for first in range(0, len(prompts), size):
        rows = prompts[first : first + size]
        width = max(map(len, rows))
        ids = [[pad] * (width - len(row)) + list(row) for row in rows]
        mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
        batches.append(Batch(torch.tensor(ids, device=device), torch.tensor(mask, device=device), first))
    return batches


def _resized(ids: list[int], length: int) -> list[int]:
    begin, rest = ids[:1], ids[1:] or ids
    wanted = length - 1
    rest = rest * -(-wanted // len(rest))
    return begin + rest[len(rest) - wanted :]


def parse_contenders(text: str, gamma: int | str) -> list[Contender]:
    """Read ``--modes``: names with commas between, each ``RULE[+RULE…][@GAMMA][:KEY=VALUE…]``.

    Examples
    --------
    >>> [c.label for c in parse_contenders("plain,stock,topk@8:k=3,topk+typical", 5)]
    ['target alone', 'stock assisted', 'topk@8:k=3', 'topk+typical']
    """
    return [_contender(part.strip(), gamma) for part in text.split(",")]


def _contender(text: str, gamma: int | str) -> Contender:
    name, *settings = text.split(":")
    name, at, own = name.partition("@")
    if at:
        gamma = parse_gamma("--modes", own)
    if name == "plain":
        return TargetAlone()
    if name == "stock":
        return StockAssisted(f"{StockAssisted.label}@{own}" if at else StockAssisted.label, fixed(gamma))
    names = name.split("+")
    for rule in names:
        if rule not in REGISTRY:
            raise LossyValueError(f"`--modes` has to name {['plain', 'stock', *REGISTRY]}, but one is {rule!r}")
    mode = names[0] if len(names) == 1 else names
    return WithRule(text, mode, parse_config(settings, "--modes"), gamma)


def parse_gamma(option: str, text: str) -> int | str:
    """Read γ: a number, or ``auto``."""
    if text == "auto":
        return text
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise LossyValueError(f"`{option}` has to have a γ >= 1 or 'auto', but has {text!r}")
    return int(text)


def needs_head(contender: Contender, models: Models) -> str | None:
    """Return the rule of a contender whose head is missing, if there is one."""
    names = rule_names(contender.config.get("lossy_mode", []))
    return next((name for name in names if head_type(REGISTRY[name]) and name not in models.heads), None)


def load_heads(items: Sequence[str], device: torch.device) -> Mapping[str, nn.Module]:
    """Load the heads that ``--head`` names, by the rule that uses them."""
    heads = {}
    for item in items:
        name, equals, source = item.partition("=")
        if not equals or name not in REGISTRY or head_type(REGISTRY[name]) is None:
            with_heads = [rule for rule in REGISTRY if head_type(REGISTRY[rule]) is not None]
            raise LossyValueError(f"`--head` has to be RULE=SOURCE with RULE one of {with_heads}, but is {item!r}")
        heads[name] = place_head(REGISTRY[name], source, device)
    return heads
