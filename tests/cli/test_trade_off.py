"""``lossy-assist trade-off``."""

from __future__ import annotations

import pytest

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.cli.trade_off import trade_off


def test_the_command_refuses_an_unknown_sweep_and_a_missing_head(tmp_path):
    with pytest.raises(LossyValueError, match="did you mean 'judge'"):
        trade_off("juge")
    with pytest.raises(LossyValueError, match="nowhere"):
        trade_off("judge", head=str(tmp_path / "nowhere"), problems=1)
