"""Any combination of fields either works or raises an error that is ours, or that transformers has for its own."""

from __future__ import annotations

from hypothesis import event, given, settings
from hypothesis import strategies as st

from hf_lossy_assist import LossyError, last_stats
from tests.abuse.calls import ABUSE, DRAFT, GENERATION, TARGET, attempt, lossy_fields, names_of, some
from tests.models import prompt

RUN_ONLY = ("output_scores", "output_logits")


@settings(ABUSE, max_examples=100)
@given(
    fields=lossy_fields(),
    generation=some(GENERATION, 5),
    do_sample=st.booleans(),
    length=st.integers(1, 9),
    tokens=st.integers(1, 14),
    gamma=st.sampled_from([1, 2, 5, 40, "auto"]),
)
def test_what_can_work_works(fields, generation, do_sample, length, tokens, gamma):
    kwargs = generation | {"input_ids": prompt(length), "max_new_tokens": tokens, "do_sample": do_sample}
    names = names_of(fields["lossy_mode"])
    if "sprinter" in names:
        kwargs = {name: value for name, value in kwargs.items() if name not in RUN_ONLY}
    plain = attempt(TARGET.generate, **kwargs)
    ours = attempt(TARGET.generate, assistant_model=DRAFT, num_assistant_tokens=gamma, **fields, **kwargs)
    event(f"plain worked: {plain.worked}, ours: {ours.worked}")
    if not plain.worked:
        assert ours.worked or isinstance(ours.error, (type(plain.error), LossyError))
        return
    if ours.error is not None:
        raise ours.error
    (text,) = ours.text
    assert text[:length] == kwargs["input_ids"][0].tolist()
    assert length < len(text) <= length + tokens
    stats = last_stats(TARGET)
    assert len(stats.trace) == len(text) - length
    if stats.lossless and not do_sample:
        assert ours.text == plain.text
