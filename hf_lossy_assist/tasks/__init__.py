"""Tasks: prompts, and what "the same answer" means."""

from .arithmetic import Arithmetic
from .lookup import load
from .task import Example, Task

__all__ = ["Arithmetic", "Example", "Task", "load"]
