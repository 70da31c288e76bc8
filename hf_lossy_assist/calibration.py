"""Settings with a bounded loss: tested, certified, and checked at use.

``bound`` and ``select`` take any measured losses as NumPy arrays; ``Certificate`` is for this package's rules.
"""

from .evaluation.calibration.betting import bound as bound
from .evaluation.calibration.betting import certify as certify
from .evaluation.calibration.betting import select as select
from .evaluation.calibration.calibrating import calibrate as calibrate
from .generation.certificate import Certificate as Certificate
