"""Model cards of heads."""

from __future__ import annotations

from pathlib import Path

from .config import HeadConfig


def render(config: HeadConfig, folder: Path) -> str:
    """Return the model card of a head in Markdown."""
    return f"# A {config.kind} head\n"
