"""Records of every token of an output, and the pages that show them."""

from .records import FATES as FATES
from .records import TokenRecord as TokenRecord
from .records import TokenScores as TokenScores
