"""Which versions of other packages are here, for the record."""

from __future__ import annotations

from importlib import metadata


def versions_of(*packages: str) -> dict[str, str]:
    """Return the versions of installed packages, by their names."""
    return {name: metadata.version(name) for name in packages}
