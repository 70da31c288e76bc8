"""The ``config.json`` of heads, and the model card that is rendered from it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from huggingface_hub import EvalResult, ModelCardData

from ..errors import LossyValueError, brief
from ..values import SIZE, Checked, Probability, Rule, Text, is_number, known_fields
from .identity import ModelIdentity
from .repository import ROC

LIBRARY = "hf_lossy_assist"

FORMAT_VERSION = 1
"""Increases when older versions of this package could misread a head."""

STATES = {
    "previous": "the final hidden state that predicted the token",
    "token": "the final hidden state that has read the token",
    "draft": "the final hidden state that has read the drafted token",
}
"""The states of a model that a head may read: inputs of its LM head."""

_HEADER = ("library_name", "format_version", "type", "weights_sha256")


def _is_json(value: Any) -> bool:
    try:
        return isinstance(value, Mapping) and json.dumps(value, allow_nan=False) is not None
    except (RecursionError, TypeError, ValueError):
        return False


_ROWS = Rule("rows", lambda x: isinstance(x, tuple | list))
_NUMBERS = Rule("numbers by name", lambda x: _is_json(x) and all(map(is_number, x.values())))
_JSON = Rule("a mapping of plain JSON", _is_json)


@dataclass(frozen=True, kw_only=True)
class HeadConfig(Checked):
    """The configuration that heads of all kinds share.

    Parameters
    ----------
    target, draft
        The models that the head was trained for.
    task
        The name of the task whose prompts it was trained on. Heads transfer badly between tasks.
    threshold
        The probability at which the head decides, between 0 and 1.
    thresholds
        Other thresholds, with their effects on prompts that the head was not fitted to.
    metrics
        Figures by name, such as the validation ``auc``.
    provenance
        Versions, command line and seeds that made the head.
    """

    target: ModelIdentity
    draft: ModelIdentity
    task: Text
    threshold: Probability
    thresholds: Annotated[tuple[Any, ...], _ROWS] = ()
    metrics: Annotated[Mapping[str, float], _NUMBERS] = field(default_factory=dict)
    provenance: Annotated[Mapping[str, Any], _JSON] = field(default_factory=dict)

    kind: ClassVar[str]
    rule: ClassVar[str]
    row: ClassVar[type]

    @property
    def columns(self) -> list[str]:
        """The features in the order of the weight, ``{model}_{state}``."""
        raise NotImplementedError

    @property
    def width(self) -> int:
        """How many numbers the head reads per token."""
        return sum(getattr(self, name.split("_")[0]).hidden_size for name in self.columns)

    @property
    def reads(self) -> str:
        """The states that the head reads, in words."""
        names = (name.split("_") for name in self.columns)
        return "; ".join(f"{STATES[state]}, of the {model}" for model, state in names)

    def told(self, name: str) -> list[Any]:
        """Return a list that the provenance has of the data, such as their ``runs``, of all folders together."""
        data = self.provenance.get("data")
        return [each for part in (data, *_listed(data, "others")) for each in _listed(part, name)]

    @property
    def figures(self) -> dict[str, str]:
        """The metrics, in words and with their bounds."""
        return dict(_figure(name, self.metrics) for name in self.metrics if not name.endswith(("_low", "_high")))

    def to_dict(self) -> dict[str, Any]:
        return {"library_name": LIBRARY, "format_version": FORMAT_VERSION, "type": self.kind, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Any, where: str = "config.json") -> Self:
        """Return the configuration in ``values``, read from ``where``; refuse other formats and missing fields."""
        try:
            _check_header(cls.kind, values)
            own = {name: value for name, value in values.items() if name not in _HEADER}
            known = known_fields(cls, own, "the configuration")
            for role in ("target", "draft"):
                known[role] = ModelIdentity.from_dict(known[role], f"`{role}`")
            if isinstance(rows := known.get("thresholds"), tuple):
                row = "a row of `thresholds`"
                known["thresholds"] = tuple(cls.row(**known_fields(cls.row, each, row)) for each in rows)
            return cls(**known)
        except LossyValueError as error:
            raise LossyValueError(f"{where}: {error}") from error


def _listed(part: Any, name: str) -> list[Any]:
    found = part.get(name) if isinstance(part, Mapping) else None
    return found if isinstance(found, list) else []


def _check_header(kind: str, values: Any) -> None:
    given = values if isinstance(values, Mapping) else {"model_type": values}
    if given.get("library_name") != LIBRARY:
        found = given.get("library_name") or given.get("model_type")
        raise LossyValueError(f"it is not the configuration of a head of {LIBRARY}, but of {brief(found)}")
    if given.get("type") != kind:
        raise LossyValueError(f"it is that of a {brief(given.get('type'))} head, but a {kind!r} head is wanted")
    SIZE.check("format_version", given.get("format_version"))
    if given["format_version"] > FORMAT_VERSION:
        raise LossyValueError(
            f"it has format version {given['format_version']}, but this version of {LIBRARY} reads up to "
            f"{FORMAT_VERSION}; upgrade {LIBRARY}"
        )


# Labels and formats of metrics; others appear by their own names.
_LABELS: Mapping[str, tuple[str, str]] = {
    "auc": ("ROC-AUC", ".4f"),
    "auc_draft": ("ROC-AUC with the state that has read the drafted token (the paper's choice)", ".4f"),
    "auc_gain": ("ROC-AUC of the better state less that of the other", "+.4f"),
    "train_auc": ("ROC-AUC on the training data", ".4f"),
    "auc_previous": ("ROC-AUC with the state that predicted the token", ".4f"),
    "auc_token": ("ROC-AUC with the state that has read the token", ".4f"),
    "recall": ("Tokens that matter, found", ".1%"),
    "skipped": ("Mismatches let pass", ".1%"),
    "tpr": ("Acceptable tokens, committed (TPR)", ".1%"),
    "fpr": ("Other tokens, committed (FPR)", ".1%"),
    "C": ("Strength of the fit, scikit-learn's C", "g"),
    "folds": ("Folds", ","),
    "prompts": ("Prompts", ","),
    "tokens": ("Labelled tokens", ","),
    "important_share": ("Tokens that matter", ".1%"),
    "acceptable_share": ("Acceptable tokens", ".1%"),
}


def render_card(config: HeadConfig, folder: Path) -> str:
    """Return the Markdown model card of a head with its metadata; it shows the ``roc.png`` in ``folder``, if any.

    The card uses the provenance's ``argv``, ``versions``, ``pair``, ``datasets`` and ``license``, and the commands of
    its ``data``, if present.
    """
    import jinja2  # needed for cards only

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    options = {"keep_trailing_newline": True, "trim_blocks": True, "undefined": jinja2.StrictUndefined}
    template = jinja2.Environment(loader=loader, **options).get_template("card_template.md")
    runs = (*config.told("runs"), config.provenance)  # the commands of the data first, each once
    return template.render(
        card_data=card_metadata(config).to_yaml(),
        title=_title(config),
        config=config,
        figures=config.figures.items(),
        thresholds=[asdict(row) for row in config.thresholds],
        roc=ROC if (folder / ROC).is_file() else None,
        commands=list(dict.fromkeys(shlex.join(run["argv"]) for run in runs if run.get("argv"))),
    )


def card_metadata(config: HeadConfig) -> ModelCardData:
    """Return the card's metadata, which names only models and datasets on the Hub."""
    bases = [identity.name for identity in (config.target, config.draft) if identity.is_on_hub]
    measured: dict[str, Any] = {}
    if "auc" in config.metrics:
        split = "out of fold" if "folds" in config.metrics else "validation"
        dataset = {"dataset_type": config.task, "dataset_name": config.task, "dataset_split": split}
        metric = {"metric_type": "roc_auc", "metric_name": "ROC-AUC", "metric_value": config.metrics["auc"]}
        results = [EvalResult(task_type="text-generation", **dataset, **metric)]
        measured = {"model_name": _title(config), "metrics": ["roc_auc"], "eval_results": results}
    return ModelCardData(
        library_name=LIBRARY,
        license=config.provenance.get("license"),
        pipeline_tag="text-generation",
        base_model=list(dict.fromkeys(bases)) or None,
        datasets=config.provenance.get("datasets"),
        tags=[LIBRARY, "speculative-decoding", "assisted-generation", f"{config.kind}-head", config.task],
        **measured,
    )


def _figure(name: str, metrics: Mapping[str, float]) -> tuple[str, str]:
    label, form = _LABELS.get(name, (f"`{name}`", "," if isinstance(metrics[name], int) else ".4g"))
    if name.startswith("auc_from_"):
        label, form = f"ROC-AUC after {name.split('_')[2]} prompts", ".4f"
    bounds = [format(metrics[bound], form) for end in ("low", "high") if (bound := f"{name}_{end}") in metrics]
    return label, format(metrics[name], form) + (f" ({' … '.join(bounds)})" if len(bounds) == 2 else "")


def _title(config: HeadConfig) -> str:
    target, draft = (identity.name.split("/")[-1] for identity in (config.target, config.draft))
    return f"{config.kind.capitalize()} head for {target} with {draft}: {config.task}"
