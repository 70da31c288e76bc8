"""The origin of labelled states, and what a head's configuration says of it."""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from ..compat import versions_of
from ..heads import ModelIdentity

_PACKAGES = ("torch", "transformers", "scikit-learn", "numpy")


@dataclass(frozen=True)
class Origin:
    """Where labelled states come from: models, task, and what the head's provenance is to say of the data.

    ``card`` has further entries of the provenance that the model card reads, such as ``license`` or ``pair``.
    """

    target: ModelIdentity
    draft: ModelIdentity
    task: str
    data: Mapping[str, Any] = field(default_factory=dict)
    card: Mapping[str, Any] = field(default_factory=dict)

    def config_fields(self, settings: Mapping[str, Any], **notes: Any) -> dict[str, Any]:
        """Return what every head's configuration says of its models, its task and the run that trained it."""
        from .. import __version__

        argv = ["lossy-assist", *sys.argv[1:]]
        versions = {"hf_lossy_assist": __version__, "Python": platform.python_version()}
        record = {
            **self.card,
            "command": shlex.join(argv),
            "argv": argv,
            "versions": versions | versions_of(*_PACKAGES),
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "data": self.data,
            "training": {**settings, **notes},
        }
        # A head that is read again is to equal the one that was saved: lists for tuples, and so on.
        provenance = json.loads(json.dumps(record))
        return {"target": self.target, "draft": self.draft, "task": self.task, "provenance": provenance}


def digest(manifest: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a manifest, whatever the order of its keys.

    Examples
    --------
    >>> digest({"kind": "judge", "task": "gsm8k"}) == digest({"task": "gsm8k", "kind": "judge"})
    True
    """
    text = json.dumps(manifest, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
