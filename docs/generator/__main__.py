"""``python -m docs.generator FOLDER``: write every page of the site, for the site generator to build."""

import sys
from pathlib import Path

from .pages import write_pages

write_pages(Path(sys.argv[1]))
