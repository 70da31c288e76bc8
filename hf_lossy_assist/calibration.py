"""Settings with a bounded loss: tested, certified, and checked at use.

``bound`` and ``select`` take any measured losses as NumPy arrays; ``Certificate`` is for this package's rules.
"""

from .evaluation.calibrating import bound as bound
from .evaluation.calibrating import calibrate as calibrate
from .evaluation.calibrating import certify as certify
from .evaluation.calibrating import select as select
from .generation.certificate import Certificate as Certificate
