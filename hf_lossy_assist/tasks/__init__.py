"""Tasks: prompts, and a check of the answers."""

from ..gone import absent_from
from .arithmetic import Arithmetic
from .lookup import load
from .task import Example, Task

__all__ = ["Arithmetic", "Example", "Task", "load"]

__getattr__ = absent_from(__name__)
