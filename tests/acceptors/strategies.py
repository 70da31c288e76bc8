"""Random settings of any rule, from what its class declares about them."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from hf_lossy_assist.acceptors import Acceptor, Setting, settings_of

MOST = 70
"""How far above its lower bound an integer goes: enough for these tests, and few enough to compute."""


def values(setting: Setting) -> st.SearchStrategy[Any]:
    """Return values of a setting that its rule has to take."""
    if setting.choices:
        own = st.sampled_from(setting.choices)
    elif setting.low is None:
        own = st.just(setting.default)
    elif setting.integer:
        own = st.integers(setting.low, int(min(setting.high, setting.low + MOST)))
    elif math.isinf(setting.high):
        own = st.floats(setting.low, 1e9) | st.just(setting.high)
    else:
        own = st.floats(setting.low, setting.high)
    if setting.word is not None:
        own = own | st.just(setting.word)
    return st.none() | own if setting.default is None else own


@st.composite
def settings_for(draw: st.DrawFn, rule: type[Acceptor]) -> dict[str, Any]:
    """Draw some of a rule's settings that can work together."""
    chosen = {each.name: draw(values(each)) for each in settings_of(rule) if draw(st.booleans())}
    for each in settings_of(rule):
        if chosen.get(each.instead_of) is not None:
            chosen.pop(each.name, None)
    return chosen
