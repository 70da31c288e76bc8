"""What a calibration has found, on disk: which settings lose how much at most, on which problems, with which models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from torch import nn
from transformers import GenerationConfig

from ..acceptors import Acceptor, settings_of
from ..config import RunConfig
from ..errors import LossyValueError
from ..evaluation.modes import CERTIFICATE, GENERATION_CONFIG
from ..heads import ModelIdentity
from ..heads.checks import brief, known_fields
from ..heads.hub import CARD, HUB_REFERENCE, Publication, hub_errors
from ..heads.repository import existing_folder
from ..mining.files import write_whole

PLOT = "plot.png"

_MOST_BYTES = 1 << 24


@dataclass(frozen=True)
class TestedSetting:
    """A setting of a calibration, and what became of it."""

    mode: str  # its label
    family: str  # the rules whose settings were tested one after the other
    config: Mapping[str, Any]  # the lossy fields, and how many tokens are drafted
    outcome: str  # "certified", "not certified", or "not tested" after one that was not
    n: int = 0  # problems
    loss: float | None = None  # the mean on these, in points
    bound: float | None = None  # of the mean loss of problems like these, in points
    confidence: float | None = None  # of this one test, in per cent
    tokens_per_second: float | None = None


@dataclass(frozen=True)
class Certificate:
    """The statement of a calibration: problems, limit, confidence, models, and every setting that was tested.

    On problems like those of ``task``, each certified setting loses at most ``max_loss`` points of the score on
    average, all at once with ``confidence`` per cent.
    """

    task: str
    split: str
    problems: int
    digest: str  # of the problems, and of how they are scored
    max_loss: float
    confidence: float
    reference: str  # the mode that all are compared with
    chosen: str | None  # the fastest certified setting, by its label
    tested: Sequence[TestedSetting]
    rule: Any  # all settings of the chosen one's rule, those left out at their defaults too
    temperature: float | None  # of draws; None for greedy decoding
    target: Mapping[str, Any]
    draft: Mapping[str, Any] | None
    heads: Mapping[str, int]  # checksums of their weights and biases, by rule
    # What each text of the chosen setting was like: drafted tokens kept per round, and the share of its tokens that
    # only the rule let through; by the names that statistics have for them.
    usual: Mapping[str, Sequence[float]] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def setting(self) -> TestedSetting:
        """The chosen setting."""
        for tested in self.tested:
            if tested.mode == self.chosen:
                return tested
        raise LossyValueError(
            f"`certificate` of the task {self.task!r} certifies no setting at {self.max_loss:g} points"
        )

    @classmethod
    def load(cls, source: str | Path) -> Certificate:
        """Read a certificate from a folder, or from the Hub: ``"org/name"`` or ``"org/name@revision"``."""
        folder = existing_folder(source)
        if folder is None:
            match = HUB_REFERENCE.fullmatch(str(source))
            if match is None:
                raise LossyValueError(f"`certificate` has to be a folder or an id on the Hub, but is {brief(source)}")
            with hub_errors(source, match["revision"]):
                folder = Path(snapshot_download(match["id"], revision=match["revision"], allow_patterns=[CERTIFICATE]))
        path = folder / CERTIFICATE
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            raise LossyValueError(
                f"`certificate` has to name a folder with a {CERTIFICATE}, but {str(folder)!r} has none"
            )
        try:
            known = known_fields(cls, json.loads(path.read_text(encoding="utf-8")), f"the certificate {str(path)!r}")
            tested = [TestedSetting(**each) for each in known["tested"]]
        except (RecursionError, TypeError, ValueError) as error:
            raise LossyValueError(
                f"`certificate` has to hold what `calibrate` writes, but {str(path)!r}: {error}"
            ) from error
        return cls(**{**known, "tested": tested})

    def save(self, folder: Path, lossy_head: Any = None) -> None:
        """Write the certificate, and for a chosen setting the generation configuration with its lossy fields."""
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / CERTIFICATE, (json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n").encode())
        if self.chosen is None:
            return
        drawn = {} if self.temperature is None else {"temperature": self.temperature, "top_k": 0, "top_p": 1.0}
        fields = {**self.setting.config, **({} if lossy_head is None else {"lossy_head": lossy_head})}
        GenerationConfig(do_sample=self.temperature is not None, **drawn, **fields).save_pretrained(folder)

    def check(
        self, run: RunConfig, target: nn.Module, draft: nn.Module | None, gamma: Any, draws: float | None
    ) -> None:
        """Raise where a run is not the certified one.

        ``gamma`` is how many tokens it drafts, and ``draws`` the temperature, None for greedy decoding.
        """
        found = [f"its target differs: {text}" for text in ModelIdentity.from_dict(self.target).differences(target)]
        if (draft is None) != (self.draft is None):
            found.append("one of both has no draft model")
        elif draft is not None:
            found += [f"its draft differs: {text}" for text in ModelIdentity.from_dict(self.draft).differences(draft)]
        if (used := rule_in_full(run)) != self.rule:
            found.append(f"its rule is {self.rule}, not {used}")
        if head_sums(run.acceptor) != dict(self.heads):
            found.append("its heads have other weights")
        if gamma != (own := self.setting.config["num_assistant_tokens"]):
            found.append(f"it drafts {own} tokens a round, not {gamma}")
        if draws != self.temperature:
            found.append(f"its temperature is {self.temperature}, not {draws} (None decodes greedily)")
        if found:
            raise LossyValueError(
                f"`certificate` in `lossy_config` is not of this run: {'; '.join(found)}. Use what was certified, "
                "calibrate anew, or leave `certificate` out"
            )


def rule_in_full(run: RunConfig) -> Any:
    """Return a run's rule with all of its settings, and its limits, as plain values."""
    values = {**_in_full(run.acceptor), "limits": asdict(run.limits)}
    return json.loads(json.dumps(values))


def _in_full(acceptor: Acceptor) -> dict[str, Any]:
    if (rules := getattr(acceptor, "rules", None)) is not None:
        return {acceptor.conjunction: [_in_full(rule) for rule in rules]}
    values = {each.name: getattr(acceptor, each.name) for each in settings_of(type(acceptor))}
    # JSON has no infinity.
    return {"rule": acceptor.name, **{key: str(x) if x == float("inf") else x for key, x in values.items()}}


def head_sums(acceptor: Acceptor) -> dict[str, int]:
    """Return the checksum of each rule's head, by the rule."""
    rules = getattr(acceptor, "rules", (acceptor,))
    return {rule.name: rule.head.checksum for rule in rules if getattr(rule, "head", None) is not None}


def certificate_publication(folder: Path) -> Publication:
    """Return the files of a certificate's folder that belong on the Hub."""
    Certificate.load(folder)
    names = [name for name in (CERTIFICATE, GENERATION_CONFIG, CARD, PLOT) if (folder / name).is_file()]
    return Publication("certificate", {name: folder / name for name in names})
