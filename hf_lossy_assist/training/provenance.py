"""Which models, task and run a trained head comes from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..heads import ModelIdentity


@dataclass(frozen=True)
class Origin:
    """What labelled states say of themselves.

    Attributes
    ----------
    target, draft
        The models whose states and disagreements they are.
    task
        The name of the task.
    data
        A description for the head's provenance, such as :func:`digest`'s.
    """

    target: ModelIdentity
    draft: ModelIdentity
    task: str
    data: Mapping[str, Any] = field(default_factory=dict)


def digest(manifest: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a manifest, whatever the order of its keys.

    Examples
    --------
    >>> digest({"kind": "judge", "task": "gsm8k"}) == digest({"task": "gsm8k", "kind": "judge"})
    True
    """
    text = json.dumps(manifest, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def of_training(origin: Origin, **settings: Any) -> dict[str, Any]:
    """Return versions, command line and date of this run, the data's origin and the settings of the training."""
    import sklearn

    from ..bench.records import provenance

    return provenance("cpu", scikit_learn=sklearn.__version__, data=dict(origin.data), training=settings)
