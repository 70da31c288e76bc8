"""Tasks: prompts, and what "the same answer" means."""

from .arithmetic import Arithmetic
from .base import Example, Task
from .loading import load

__all__ = ["Arithmetic", "Example", "Task", "load"]
