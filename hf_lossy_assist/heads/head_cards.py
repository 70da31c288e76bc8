"""Model cards of heads, rendered from their configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from .checks import LIBRARY
from .head_config import HeadConfig
from .repository import PLACEHOLDER_ID, ROC

# Labels and formats of metrics; others appear by their own names.
_LABELS: Mapping[str, tuple[str, str]] = {
    "auc": ("ROC-AUC", ".4f"),
    "auc_low": ("ROC-AUC, 95 % interval, from", ".4f"),
    "auc_high": ("ROC-AUC, 95 % interval, to", ".4f"),
    "train_auc": ("ROC-AUC on the training data", ".4f"),
    "auc_previous": ("ROC-AUC with the state that predicted the token", ".4f"),
    "auc_token": ("ROC-AUC with the state that has read the token", ".4f"),
    "recall": ("Tokens that matter, found", ".1%"),
    "skipped": ("Mismatches let pass", ".1%"),
    "tpr": ("Acceptable tokens, committed (TPR)", ".1%"),
    "fpr": ("Other tokens, committed (FPR)", ".1%"),
}


def render(config: HeadConfig, folder: Path) -> str:
    """Return the Markdown model card of a head with its metadata; it shows the ``roc.png`` in ``folder``, if any.

    The card uses the provenance's ``command``, ``versions``, ``pair``, ``datasets`` and ``license``, if present.
    """
    import jinja2  # needed for cards only

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    options = {"keep_trailing_newline": True, "trim_blocks": True, "undefined": jinja2.StrictUndefined}
    template = jinja2.Environment(loader=loader, **options).get_template("card_template.md")
    return template.render(
        card_data=metadata(config).to_yaml(),
        title=_title(config),
        config=config,
        figures=[_figure(name, value) for name, value in config.metrics.items()],
        thresholds=[asdict(row) for row in config.thresholds],
        roc=ROC if (folder / ROC).is_file() else None,
        repo_id=PLACEHOLDER_ID,
    )


def metadata(config: HeadConfig) -> ModelCardData:
    """Return the card's metadata, which names only models and datasets on the Hub."""
    bases = [identity.name for identity in (config.target, config.draft) if identity.is_on_hub]
    measured: dict[str, Any] = {}
    if "auc" in config.metrics:
        dataset = {"dataset_type": config.task, "dataset_name": config.task, "dataset_split": "validation"}
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


def _figure(name: str, value: float) -> tuple[str, str]:
    label, form = _LABELS.get(name, (f"`{name}`", "," if isinstance(value, int) else ".4g"))
    return label, format(value, form)


def _title(config: HeadConfig) -> str:
    target, draft = (identity.name.split("/")[-1] for identity in (config.target, config.draft))
    return f"{config.kind.capitalize()} head for {target} with {draft}: {config.task}"
