"""The entry point of a ``custom_generate`` repository: lossy decoding without an import and without ``enable``."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from ..acceptors import REGISTRY
from ..errors import LossyValueError
from ..generation.enabling import enabled

# transformers also passes its keywords for finding the repository, which no forward knows.
_HUB_KEYWORDS = ("revision", "token", "cache_dir", "force_download", "local_files_only", "proxies", "repo_type")


def generate(*args: Any, model: PreTrainedModel, **kwargs: Any) -> Any:
    """Run ``model.generate()`` with the package enabled for this model and this call.

    transformers calls it for ``generate(..., custom_generate=<id or folder>, trust_remote_code=True)``, and in place
    of ``generate()`` for models whose own repository has such a folder. ``model`` is the target; the other arguments
    are ``generate()``'s. A keyword or a generation configuration has to name a ``lossy_mode``.

    Examples
    --------
    >>> from hf_lossy_assist import pairs
    >>> pair = pairs.load("arithmetic")
    >>> inputs = pair.tokenizer(pair.task.examples("test", 1)[0].prompt, return_tensors="pt")
    >>> settings = {"lossy_mode": "topk", "max_new_tokens": 20, "return_dict_in_generate": True}
    >>> generate(**inputs, model=pair.target, assistant_model=pair.draft, **settings).lossy_stats.rounds > 0
    True
    """
    kwargs = {name: value for name, value in kwargs.items() if name not in _HUB_KEYWORDS}
    config = kwargs.get("generation_config")
    named = any(getattr(one, "lossy_mode", None) is not None for one in (config, model.generation_config))
    if "lossy_mode" not in kwargs and not named and not getattr(config, "is_assistant", False):
        raise LossyValueError(
            "`lossy_mode` has to be given with this `custom_generate`, as a keyword or in the `generation_config`: one "
            f"of {list(REGISTRY)}, or None for ordinary decoding"
        )
    with enabled(model):
        # Use the class's: a model with such a repository has this function as its attribute `generate`.
        return type(model).generate(model, *args, **kwargs)
