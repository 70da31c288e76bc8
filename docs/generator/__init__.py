"""Makes the site's pages, from those of this folder and of the repository, and from the code."""

MODULES = ("acceptors", "calibration", "pairs", "tasks", "theory", "core.messages", "core.verification")
"""The modules that have a page of reference, beside the package itself."""
