"""All knowledge of transformers' versions and private names: what the modules here name without an underscore."""

from .caches import *
from .callers import *
from .drafters import *
from .inputs import *
from .kernels import *
from .models import *
from .mtp import *
from .multimodal import *
from .positions import *
from .probe import *
from .processors import *
from .snapshots import *
from .tree_inputs import *
