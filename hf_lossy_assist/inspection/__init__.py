"""Seeing what became of every token: what is recorded of it, and the pages that show it."""

from .token_record import FATES as FATES
from .token_record import Judgement as Judgement
from .token_record import TokenRecord as TokenRecord
