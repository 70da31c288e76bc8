"""What the tables of mined data look like."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow


def judge_schemas(widths: Mapping[str, int]) -> dict[str, pyarrow.Schema]:
    """Return the tables of AutoJudge's labels.

    Parameters
    ----------
    widths
        Columns of hidden states, e.g. ``"target_draft"``, and their sizes.
    """
    import pyarrow as pa

    ids = pa.list_(pa.int32())
    return {
        "prompts": _prompts(
            {
                "answer": pa.string(),
                "first_response": ids,
                "last_response": ids,
                "mismatches": pa.int32(),
                "important": pa.int32(),
                "target_tokens": pa.int64(),
                "retokenised": pa.int32(),
            }
        ),
        "tokens": pa.schema(
            {
                "prompt_id": pa.int64(),
                "index": pa.int32(),
                "target_token": pa.int32(),
                "draft_token": pa.int32(),
                "important": pa.bool_(),
                **_states(widths),
            }
        ),
    }


def ratio_schemas(width: int) -> dict[str, pyarrow.Schema]:
    """Return the tables of SPRINTER's ratios, for a draft with so wide a hidden state."""
    import pyarrow as pa

    return {
        "prompts": _prompts({"rows": pa.int32()}),
        "tokens": pa.schema(
            {
                "prompt_id": pa.int64(),
                "kind": pa.string(),
                "index": pa.int32(),
                "token": pa.int32(),
                "p": pa.float32(),
                "q": pa.float32(),
                **_states({"previous": width, "token_state": width}),
            }
        ),
    }


def _prompts(more: Mapping[str, pyarrow.DataType]) -> pyarrow.Schema:
    import pyarrow as pa

    return pa.schema(
        {
            "prompt_id": pa.int64(),
            "fold": pa.int32(),
            "status": pa.string(),
            "error": pa.string(),
            "prompt": pa.string(),
            "prompt_tokens": pa.list_(pa.int32()),
            **more,
        }
    )


def _states(widths: Mapping[str, int]) -> Iterable[tuple[str, pyarrow.DataType]]:
    import pyarrow as pa

    return {name: pa.list_(pa.float32(), width) for name, width in widths.items()}
