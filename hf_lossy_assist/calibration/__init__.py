"""Settings whose loss is bounded: tested on problems, certified, checked where they are used, and watched afterwards.

``bound`` and ``select`` take losses of whatever one has measured, as NumPy arrays; ``Certificate`` and ``Watch`` are of
rules of this package.
"""

from .betting import LossTest as LossTest
from .betting import bound as bound
from .betting import certify as certify
from .betting import select as select
from .calibrating import calibrate as calibrate
from .calibrating import calibrate_from as calibrate_from
from .certificate import Certificate as Certificate
from .watch import Watch as Watch
