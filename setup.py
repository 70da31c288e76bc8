"""What `pyproject.toml` can't say: the package index shows README, and its links have to lead to the repository."""

import re
from pathlib import Path

from setuptools import setup

SOURCE = "https://github.com/hf-lossy-assist/hf-lossy-assist"

readme = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
readme = re.sub(r"(!\[[^\]]*\]\()(?!https?:|#)", rf"\1{SOURCE}/raw/main/", readme)
readme = re.sub(r"((?<!!)\[[^\]]*\]\()(?!https?:|#)", rf"\1{SOURCE}/blob/main/", readme)
setup(long_description=readme, long_description_content_type="text/markdown")
