"""The end of a process that exchanged tensors with others."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def leave() -> NoReturn:
    """End at once: torch aborts a process whose interpreter ends while gloo's threads still free tensors.

    See https://github.com/pytorch/pytorch/issues/190489; neither a barrier nor destroying the group prevents it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
