"""Model cards of heads, rendered from their configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from .head_config import LIBRARY, HeadConfig
from .hub import PLACEHOLDER_ID
from .identity import ModelIdentity
from .repository import ROC

_TEMPLATE = "card_template.md"
# Metrics by name: what the card calls them, and how it writes them. Others stand there as they are.
_LABELS: Mapping[str, tuple[str, str]] = {
    "auc": ("ROC-AUC", "{:.4f}"),
    "auc_low": ("ROC-AUC, 95 % interval, from", "{:.4f}"),
    "auc_high": ("ROC-AUC, 95 % interval, to", "{:.4f}"),
    "train_auc": ("ROC-AUC on the training data", "{:.4f}"),
    "auc_previous": ("ROC-AUC with the state that predicted the token", "{:.4f}"),
    "auc_token": ("ROC-AUC with the state that has read the token", "{:.4f}"),
    "recall": ("Tokens that matter, found", "{:.1%}"),
    "skipped": ("Mismatches let pass", "{:.1%}"),
    "tpr": ("Acceptable tokens, committed (TPR)", "{:.1%}"),
    "fpr": ("Other tokens, committed (FPR)", "{:.1%}"),
}


def render(config: HeadConfig, folder: Path, repo_id: str = PLACEHOLDER_ID) -> str:
    """Return the model card of a head in Markdown, with its metadata on top.

    Of the provenance it uses, where they are there, ``command``, ``versions`` (a mapping), ``pair`` (the bundled pair
    that the models are), ``datasets`` and ``license`` (as the Hub calls them). A ``roc.png`` in ``folder``, the head's,
    is shown.

    Examples
    --------
    >>> from hf_lossy_assist.heads import JudgeConfig
    >>> llama = ModelIdentity("org/llama", None, "LlamaForCausalLM", hidden_size=64, vocab_size=1000)
    >>> config = JudgeConfig(target=llama, draft=llama, task="gsm8k", threshold=0.1, results=({"accuracy": 0.9},))
    >>> print(render(config, Path()).partition("On the test split ")[2])
    of `gsm8k`:
    <BLANKLINE>
    | accuracy |
    | --- |
    | 0.9 |
    <BLANKLINE>
    """
    import jinja2  # comes with torch and is wanted for cards only

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        keep_trailing_newline=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["asdict"] = asdict
    return environment.get_template(_TEMPLATE).render(
        card_data=metadata(config).to_yaml(),
        title=_title(config),
        config=config,
        target=_link(config.target),
        draft=_link(config.draft),
        reads=config.reads,
        figures=[_figure(name, value) for name, value in config.metrics.items()],
        pair=config.provenance.get("pair"),
        mode=config.rule,
        repo_id=repo_id,
        table=_table,
        roc=ROC if (folder / ROC).is_file() else None,
        command=config.provenance.get("command"),
        versions=", ".join(f"{name} {version}" for name, version in config.provenance.get("versions", {}).items()),
    )


def metadata(config: HeadConfig) -> ModelCardData:
    """Return the card's metadata; models and datasets that are not on the Hub have no place in it."""
    bases = [identity.name for identity in (config.target, config.draft) if identity.is_on_hub]
    measured: dict[str, Any] = {}
    if "auc" in config.metrics:
        result = EvalResult(
            task_type="text-generation",
            dataset_type=config.task,
            dataset_name=config.task,
            dataset_split="validation",
            metric_type="roc_auc",
            metric_name="ROC-AUC",
            metric_value=config.metrics["auc"],
        )
        measured = {"model_name": _title(config), "metrics": ["roc_auc"], "eval_results": [result]}
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
    label, form = _LABELS.get(name, (f"`{name}`", "{:,}" if isinstance(value, int) else "{:.4g}"))
    return label, form.format(value)


def _title(config: HeadConfig) -> str:
    target, draft = (identity.name.split("/")[-1] for identity in (config.target, config.draft))
    return f"{config.kind.capitalize()} head for {target} with {draft}: {config.task}"


def _link(identity: ModelIdentity) -> str:
    if not identity.is_on_hub:
        return f"{identity.name} ({identity.architecture})"
    at = f" at `{identity.revision[:12]}`" if identity.revision else ""
    return f"[{identity.name}](https://huggingface.co/{identity.name}){at} ({identity.architecture})"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    header = list(rows[0])
    lines = [header, ["---"] * len(header), *([_cell(row[name]) for name in header] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
