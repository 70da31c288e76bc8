"""A sandbox for programs that nobody has read: a bad one costs a failed answer and nothing else."""

from .launcher import ProgramReport, Sandbox

__all__ = ["ProgramReport", "Sandbox"]
