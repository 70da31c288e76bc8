"""Looks up the names that users write. Errors say what replaces a removed name, or what a wrong one resembles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .errors import LossyValueError, nearest

GONE: Mapping[str, Mapping[str, str]] = {
    "command": {
        "dropout": 'take the one that `advise(…, modes="dropmatch").best("dropmatch").settings` has for all prompts',
        "train assistant": "train a small draft by distillation, for example with TRL's GKD trainer, and pass it as "
        "`assistant_model`",
        "train eagle3": "train the head with speculators or SpecForge, and load it with `Eagle3.from_pretrained`",
        "import-autojudge": "open the file in your own environment and give its arrays to `JudgeHead.from_linear`",
        "serve": "start transformers' own server after `hf_lossy_assist.enable(assistant_model=…)`, as "
        "examples/12_serve.py does, or vLLM's with this package's plugin",
    },
    "option": {
        "--config": "write settings after the rule, `--mode topk:k=3`, or a calibrated folder instead, `--mode FOLDER`",
        "--mode": "name all modes in one option, `--modes plain,topk:k=3`",
        "--mode RULE,RULE": "join the rules of one mode by a plus, `--mode RULE+RULE`",
        "/mode RULE KEY=VALUE": "put colons before the settings in `lossy-assist chat`, `/mode RULE:KEY=VALUE`",
        "--share-rows": "each mode now runs for itself; answer in batches with `--batch-size`",
    },
    "rule": {
        "steps": "every other rule lets the target check the draft's tokens; take `judge` or `min_p`",
    },
    "key of `lossy_config`": {},
    "import": {
        "hf_lossy_assist.lossy_fields": "`LossyConfig.from_fields(mode, config, head).to_fields()` returns the fields",
        "hf_lossy_assist.integrations.serving": "start transformers' own server as examples/12_serve.py does",
        "hf_lossy_assist.calibration.Watch": "certify settings on new problems with `calibration.calibrate`",
        "hf_lossy_assist.inspection.TokenRecord": "import it from `hf_lossy_assist.core.token_records`",
        "hf_lossy_assist.inspection.TokenScores": "import it from `hf_lossy_assist.core.token_records`",
        "hf_lossy_assist.inspection.FATES": "import it from `hf_lossy_assist.inspection.page`",
    },
    "task": {
        "ifeval": "run it in lm-evaluation-harness, `lossy-assist lm-eval --tasks ifeval`",
        "choices": "run it in lm-evaluation-harness, `lossy-assist lm-eval --tasks mmlu_generative`",
        "summaries": "run one in lm-evaluation-harness, `lossy-assist lm-eval --tasks longbench_gov_report`",
    },
    "pair": {
        "smollm2": 'use "qwen-coder", a real pair of chat models, or "arithmetic", which the package brings',
    },
}
"""By kind, each spelling of earlier versions and the sentence that names its replacement, for one release.

docs/migration.md lists them all. An import is written in full, ``hf_lossy_assist.calibration.Name``, and a command of a
group after the group's name, ``train name``."""


def check_gone(kind: str, name: str) -> None:
    """Raise :class:`LossyValueError` if a name has been removed; the message names its replacement.

    Examples
    --------
    >>> check_gone("rule", "lossless")
    """
    if (instead := GONE[kind].get(name)) is not None:
        raise LossyValueError(f"the {kind} {name!r} was removed: {instead}")


def check_name(argument: str, name: Any, known: Iterable[str], kind: str) -> None:
    """Raise :class:`LossyValueError` unless a name is known; the message says what replaces or resembles it.

    Examples
    --------
    >>> check_name("lossy_mode", "topk", ["topk", "typical"], "rule")
    """
    if name not in (known := list(known)):
        check_gone(kind, str(name))
        raise LossyValueError(f"`{argument}` has to be one of {known}, but is {name!r}{nearest(name, known)}")


def check_keys(argument: str, keys: Sequence[str], given: Iterable[str]) -> None:
    """Raise :class:`LossyValueError` for a key that is none of ``keys``."""
    for key in given:
        if key not in keys:
            raise LossyValueError(f"{argument} has the keys {list(keys)}, but not {key!r}{nearest(key, keys)}")


def absent_from(module: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module whose removed names say what replaces them."""

    def absent(name: str) -> Any:
        check_gone("import", f"{module}.{name}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return absent
