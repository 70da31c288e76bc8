"""The errors of this package. Every one is a ``ValueError``, so ``except ValueError`` keeps working."""


class LossyError(ValueError):
    """The base of all errors that this package raises."""


class LossyValueError(LossyError):
    """An argument has a value that can't work. The message names the argument, the rule and the value."""


class LossyUnsupportedError(LossyError):
    """A well-formed request for something that is not (yet) supported."""
