"""The versions of this package and of the laws of its rules."""

__version__ = "0.1.0"

LAW = 2
"""Since 2, a :class:`~hf_lossy_assist.acceptors.GreedyRule` that draws keeps what the lossless rule keeps, too."""
