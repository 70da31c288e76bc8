"""Settings with a bounded loss: tested, certified, and checked at use.

``bound`` and ``select`` take any measured losses as NumPy arrays; ``Certificate`` is for this package's rules.
"""

from .evaluation.betting import bound as bound
from .evaluation.betting import certify as certify
from .evaluation.betting import select as select
from .evaluation.calibrating import calibrate as calibrate
from .generation.certificate import Certificate as Certificate
