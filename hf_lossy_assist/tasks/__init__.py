"""Tasks: prompts, and what "the same answer" means."""

from .arithmetic import Arithmetic
from .base import Example, Task

__all__ = ["Arithmetic", "Example", "Task"]
