"""Pages that show an output token by token."""

from ..gone import absent_from

__getattr__ = absent_from(__name__)
