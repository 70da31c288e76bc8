"""Heads that read hidden states: judges of mismatches and verifiers of drafted tokens."""

from .head import Head as Head
from .head import fold as fold
from .head import load_head as load_head
from .head import place_head as place_head
from .head_config import HeadConfig as HeadConfig
from .identity import ModelIdentity as ModelIdentity
from .judge_head import JudgeConfig as JudgeConfig
from .judge_head import JudgeHead as JudgeHead
from .judge_head import ThresholdRow as ThresholdRow
from .judge_head import columns as columns
from .verifier_head import VerifierConfig as VerifierConfig
from .verifier_head import VerifierHead as VerifierHead
from .verifier_head import VerifierRow as VerifierRow
