"""Tasks: prompts, and a check of the answers."""

from .arithmetic import Arithmetic
from .lookup import load
from .task import Example, Task

__all__ = ["Arithmetic", "Example", "Task", "load"]
