"""Tasks: prompts, and a check of the answers."""

from .api_model import ApiModel
from .arithmetic import Arithmetic
from .lookup import load
from .task import Example, Task

__all__ = ["ApiModel", "Arithmetic", "Example", "Task", "load"]
