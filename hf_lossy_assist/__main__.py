"""``python -m hf_lossy_assist`` is ``lossy-assist``."""

from .cli import main

if __name__ == "__main__":
    main()
