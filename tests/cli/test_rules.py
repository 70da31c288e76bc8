"""``lossy-assist rules``."""

from __future__ import annotations

from functools import partial

import pytest

from hf_lossy_assist.acceptors import REGISTRY, settings_of
from tests.cli.running import said

run = partial(said, "rules")


def joined(text: str) -> str:
    return "".join(text.split())


def test_every_rule_has_a_row_with_its_settings():
    printed = run(columns=80)
    first_words = [line.split()[0] for line in printed.splitlines() if line[:1] == " " and line[1:2].strip()]
    assert [word for word in first_words if word in REGISTRY] == [*REGISTRY]
    for rule in REGISTRY.values():
        for setting in settings_of(rule):
            assert f" {setting.name} " in printed
    for text in ("k 2 (1 to ∞)", "criterion js (js or naive)", "weight 0.8 (above 0 to 1)", "q, dropped"):
        assert text in printed
    assert max(map(len, printed.splitlines())) <= 80


@pytest.mark.parametrize("name", REGISTRY)
def test_a_rule_says_its_law_settings_and_source(name: str):
    shown = joined(run(name, columns=200))
    rule = REGISTRY[name]
    assert joined(rule.paper) in shown
    assert joined((rule.__doc__ or "").partition("\n\n")[0]).replace("``", "") in shown
    for setting in settings_of(rule):
        assert joined(setting.help) in shown
