"""transformers' OpenAI-compatible server, with a draft and a rule for every answer.

pip install 'transformers[serving]'; python examples/12_serve.py TARGET DRAFT
"""

import sys
from typing import Any

from transformers import AutoModelForCausalLM
from transformers.cli.serve import Serve

import hf_lossy_assist


def serve(target: str, draft: str, **options: Any) -> Serve:
    """Serve one model; the options are those of ``transformers serve``, e.g. ``host``, ``port`` and ``device``."""
    assistant = AutoModelForCausalLM.from_pretrained(draft, dtype="auto", device_map=options.get("device", "auto"))
    # For every model of the process, since the server loads its own. Clients can send a generation configuration;
    # these defaults beat it, so no client chooses a rule, its settings or a head, which could be any local folder.
    hf_lossy_assist.enable(assistant_model=assistant.eval(), lossy_mode="min_p", lossy_config={"tau": 0.5})
    return Serve(force_model=target, **options)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        serve(*sys.argv[1:])
    except ImportError as error:  # without transformers' extra
        sys.exit(str(error))
