"""Settings with a bounded loss: tested, certified, and checked at use.

``bound`` and ``select`` take any measured losses as NumPy arrays; ``Certificate`` is for this package's rules.
"""

from ..call.certificate import Certificate as Certificate
from .betting import LossTest as LossTest
from .betting import bound as bound
from .betting import certify as certify
from .betting import select as select
from .calibrating import calibrate as calibrate
from .calibrating import calibrate_from as calibrate_from
