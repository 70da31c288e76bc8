"""All knowledge of transformers' versions and private names: the names imported here."""

from __future__ import annotations

from .adapters import RowAdapters
from .attention import fold_attention
from .caches import (
    CACHE,
    CACHE_NAMES,
    EMPTY_LAYERS,
    REWINDING_LAYERS,
    FixedLayer,
    attention_windows,
    belongs_to_user,
    cache_name,
    cache_of,
    counts_tokens,
    empty_copy,
    forgettable,
    is_offloaded_cache,
    mark_user_cache,
    new_cache,
    obstacle_in_cache,
    quantises,
    ready_for_rollback,
    recording,
    rollback,
    slides_badly,
    stop_recording,
    text_cache,
    tokens_in,
)
from .callers import (
    CONTINUOUS_BATCHING,
    MERGE,
    decodes_elsewhere,
    generating_parts,
    merged_by_own_generate,
    owner_of,
    pipeline_with_default,
    without_defaults,
)
from .drafters import (
    DRAFTERS_WITHOUT_LOGITS,
    CandidateGenerator,
    drafts_from_target_states,
    intercepted_drafter,
    transformers_drafter,
)
from .grammars import copies_of_grammar_parts, is_grammar_part, with_grammar_of_row
from .inputs import (
    TEXT_INPUTS,
    WHOLE_OUTPUTS,
    DraftForwardInputs,
    ForwardInputs,
    PlainForwardInputs,
    ending_tokens,
    forward_inputs,
    padding_token,
    tokens_before,
)
from .kernels import has_hooks, has_int8_kernel, int8_product
from .models import (
    DECODING_METHODS,
    MASKED_ATTENTION,
    any_unfinished,
    attention_of,
    compiles_by_itself,
    device_of,
    encode,
    file_of,
    forward_accepts,
    generation_accepts,
    has_recurrent_state,
    idle_forward,
    innermost,
    is_sharded,
    load_errors,
    obstacle_in_adapter,
    origin_of,
    replaces_decoding,
    shared_seed,
    supports_static_cache,
    unwrap,
    versions_of,
)
from .multimodal import (
    ENCODED,
    PreparedInputs,
    generates_inside,
    obstacle_in_cross_attention,
    obstacle_to_rows,
    obstacle_to_states,
    other_inputs,
    placeholders,
    prepared_inputs,
    reading,
    reads_by_column,
    row_of_encoded,
)
from .positions import (
    FrequencySwitch,
    changes_frequencies,
    counts_by_column,
    frequency_switch,
    keeps_positions,
    learned_positions,
)
from .processors import (
    PREFIX_FREE_PROCESSORS,
    STATEFUL_PROCESSORS,
    observe,
    of_rows,
    process_row,
    process_rows_alike,
    process_rows_apart,
    reads_only_text,
    without_observers,
)
from .recurrent_states import CacheSnapshot, continuation_of, obstacle_to_rollback
from .tree_inputs import TreeInputs, obstacle_to_trees, takes_whole_masks
