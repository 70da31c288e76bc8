"""What holds for all tests, and tiny models for measurements."""

from tests.conftest import (  # noqa: F401
    _enabled_and_undone,
    _no_clock,
    _nobody_was_warned,
    _whole_drafts,
    default_ends,
    gguf_read_once,
)
from tests.small_pair import models, pair, tokenizer  # noqa: F401
from tests.tiny_pair import bundled, tiny_pair_folder  # noqa: F401
