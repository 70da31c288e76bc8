"""Other systems that the rules work in."""

from ..gone import absent_from

__getattr__ = absent_from(__name__)
