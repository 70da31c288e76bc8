"""Certificate files. A certificate bounds the loss of each tested setting, for one task and one pair of models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_type_hints

from huggingface_hub.dataclasses import type_validator
from torch import nn
from transformers import GenerationConfig

from ..acceptors import REGISTRY, Acceptor, place_rule_head
from ..drafting.vocabulary import kept_tokens
from ..errors import LossyValueError, brief
from ..heads import ModelIdentity
from ..heads.identity import differing_models
from ..heads.repository import CONFIG, HUB_REFERENCE, WEIGHTS, existing_folder, local_files
from ..models.quantised import dtype_of
from ..store.folder import write_json
from ..values import from_json, is_number

GENERATION_CONFIG, CERTIFICATE = "generation_config.json", "certificate.json"

Number = int | float

_MOST_BYTES = 1 << 24


class _Typed:
    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            try:
                type_validator(name, getattr(self, name), kind)
            except TypeError as error:
                raise LossyValueError(f"`{name}` has another type: {error!s:.300}") from error
            if isinstance(getattr(self, name), Number):
                _require(is_number(getattr(self, name)), name, "finite", getattr(self, name))


@dataclass(frozen=True)
class TestedSetting(_Typed):
    """A setting of a calibration, and its outcome."""

    mode: str  # its label
    family: str  # the rules whose settings were tested one after the other
    config: dict[str, Any]  # the lossy fields, and how many tokens are drafted
    outcome: Literal["certified", "not certified", "not tested"]  # none is tested after a failure
    n: int = 0  # problems
    loss: Number | None = None  # the mean on these, in points
    bound: Number | None = None  # of the mean loss of problems like these, in points
    confidence: Number | None = None  # of this one test, in per cent
    tokens_per_second: Number | None = None


@dataclass(frozen=True)
class Certificate(_Typed):
    """The statement of a calibration: problems, limit, confidence, models, and every tested setting.

    On problems like those of ``task``, each certified setting loses at most ``max_loss`` points of the score on
    average, all at once with ``confidence`` per cent.
    """

    task: str
    split: str
    problems: int
    digest: str  # of the problems, and of how they are scored
    max_loss: Number
    confidence: Number
    reference: str  # the mode that all are compared with
    chosen: str | None  # the fastest certified setting, by its label
    tested: list[TestedSetting]
    rule: dict[str, Any] | None  # all settings of the chosen one's rule, those left out at their defaults too
    temperature: Number | None  # of draws; None for greedy decoding
    target: dict[str, Any]
    draft: dict[str, Any] | None
    heads: dict[str, int]  # checksums of their weights and biases, by rule
    changes: dict[str, Any] = field(default_factory=dict)  # of the draft, see :func:`draft_changes`
    versions: dict[str, Any] = field(default_factory=dict)
    source: str | None = field(default=None, compare=False)  # where it was loaded from, which its file does not say

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("max_loss", "confidence"):
            _require(0 < getattr(self, name) < 100, name, "a number > 0 and < 100", getattr(self, name))
        certified = [each.mode for each in self.tested if each.outcome == "certified"]
        _require(self.chosen in (None, *certified), "chosen", f"None or one of the certified {certified}", self.chosen)
        _require(self.heads.keys() <= REGISTRY.keys(), "heads", f"keyed by some of {list(REGISTRY)}", self.heads)
        ModelIdentity.from_dict(self.target, "`target`")
        if self.draft is not None:
            ModelIdentity.from_dict(self.draft, "`draft`")

    @property
    def setting(self) -> TestedSetting:
        """The chosen setting."""
        for tested in self.tested:
            if tested.mode == self.chosen:
                return tested
        raise LossyValueError(
            f"`certificate` of the task {self.task!r} certifies no setting at {self.max_loss:g} points; "
            "evaluate more problems or allow a larger loss, and calibrate again"
        )

    @classmethod
    def load(cls, source: str | Path) -> Certificate:
        """Read a certificate from a folder, or from the Hub: ``"org/name"`` or ``"org/name@revision"``."""
        folder = certificate_folder(source)
        path = folder / CERTIFICATE
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            raise LossyValueError(
                f"`certificate` has to name a folder with a {CERTIFICATE}, but {str(folder)!r} has none"
            )
        try:
            values = from_json(path.read_bytes(), "it")
            type_validator("tested", values["tested"], list[dict])
            tested = [TestedSetting(**each) for each in values["tested"]]
            return cls(**{**values, "tested": tested, "source": str(source)})
        except (KeyError, TypeError, ValueError) as error:
            raise LossyValueError(
                f"`certificate` has to hold what `calibrate` writes, but {str(path)!r} does not: {error!s:.500}; "
                "calibrate or download it again"
            ) from error

    def save(self, folder: str | Path, heads: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Write the certificate and, for a chosen setting, its generation configuration and heads.

        ``heads`` has the certified heads, or their places, by rule.
        """
        used = {rule: place_rule_head(REGISTRY[rule], heads[rule], "cpu") for rule in self.heads if rule in heads}
        if (sums := {rule: head.checksum for rule, head in used.items()}) != dict(self.heads):
            raise LossyValueError(
                f"`heads` has to have the certified heads of {sorted(self.heads)}, but has heads of {sorted(sums)}, or "
                "other weights; give the calibrated heads"
            )
        folder = Path(folder)
        if (folder / GENERATION_CONFIG).exists() and not (folder / CERTIFICATE).exists():
            raise LossyValueError(
                f"`out` has to be a folder for a certificate, but {str(folder)!r} has a {GENERATION_CONFIG} of "
                "something else; choose another folder"
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / CERTIFICATE, {key: value for key, value in asdict(self).items() if key != "source"})
        if self.chosen is None:
            (folder / GENERATION_CONFIG).unlink(missing_ok=True)  # of an earlier calibration
            return
        for rule, head in used.items():
            head.save_pretrained(folder / rule)
        drawn = {} if self.temperature is None else {"temperature": self.temperature, "top_k": 0, "top_p": 1.0}
        own = {name: value for name, value in self.setting.config.items() if name != "engine"}
        GenerationConfig(do_sample=self.temperature is not None, **drawn, **own).save_pretrained(folder)

    def head_folders(self, rules: Iterable[str]) -> dict[str, str]:
        """Return the folder of each rule's certified head, where the certificate has one beside it."""
        folders = {rule: certificate_folder(self.source) / rule for rule in rules if rule in self.heads}
        return {rule: str(folder) for rule, folder in folders.items() if folder.is_dir()}

    def check(
        self,
        rule: Acceptor,
        in_full: dict[str, Any],
        target: nn.Module,
        draft: nn.Module | None,
        gamma: Any,
        draws: float | None,
        engine: str | None = None,
    ) -> None:
        """Raise where a run is not the certified one.

        ``in_full`` has all settings of its ``rule``. ``gamma`` is its draft length, and ``draws`` its temperature, None
        for greedy decoding. ``engine`` decodes, if not transformers.
        """
        found = differing_models(vars(self), {"target": target, "draft": draft})
        if (changes := draft_changes(draft)) != self.changes:
            found.append(f"its draft was changed by {self.changes or 'nothing'}, not by {changes or 'nothing'}")
        if engine != (own := self.setting.config.get("engine")):
            found.append(f"it was measured in {own or 'transformers'}, not in {engine or 'transformers'}")
        if in_full != self.rule:
            found.append(f"its rule is {self.rule}, not {in_full}")
        if head_sums(rule) != dict(self.heads):
            found.append("its heads have other weights")
        if gamma != (own := self.setting.config.get("num_assistant_tokens")):
            found.append(f"it drafts {own} tokens a round, not {gamma}")
        if draws != self.temperature:
            found.append(f"its temperature is {self.temperature}, not {draws} (None decodes greedily)")
        if found:
            raise LossyValueError(
                f"`certificate` in `lossy_config` is not of this run: {'; '.join(found)}. Use what was certified, "
                "calibrate anew, or leave `certificate` out"
            )


def certificate_folder(source: str | Path) -> Path:
    """Return a certificate's folder, in which each rule's head has a folder with the rule's name."""
    folder = existing_folder(source)
    if folder is not None:
        return folder
    match = HUB_REFERENCE.fullmatch(str(source))
    if match is None:
        raise LossyValueError(f"`certificate` has to be a folder or an id on the Hub, but is {brief(source)}")
    return local_files(match["id"], [CERTIFICATE, f"*/{CONFIG}", f"*/{WEIGHTS}"], revision=match["revision"])


def draft_changes(draft: nn.Module | None) -> dict[str, Any]:
    """Return what makes a draft cheaper, so that it drafts other tokens; its identity does not tell."""
    found = {} if draft is None else {"draft_dtype": dtype_of(draft), "draft_tokens": kept_tokens(draft)}
    return {name: change for name, change in found.items() if change is not None}


def _require(holds: bool, name: str, expected: str, value: Any) -> None:
    if not holds:
        raise LossyValueError(f"`{name}` has to be {expected}, but is {brief(value)}")


def head_sums(acceptor: Acceptor) -> dict[str, int]:
    """Return the checksum of each rule's head, by rule."""
    rules = getattr(acceptor, "rules", (acceptor,))
    return {rule.name: rule.head.checksum for rule in rules if getattr(rule, "head", None) is not None}
