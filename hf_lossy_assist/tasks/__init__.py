"""Tasks: sources of prompts that say when two answers are the same."""

from .arithmetic import Arithmetic
from .lookup import load
from .programs import Programs
from .task import Example, Task

__all__ = ["Arithmetic", "Example", "Programs", "Task", "load"]
