"""The number that a solution ends in."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_lossy_assist.tasks.gsm8k import final_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### 18", "18"),
        ("The answer is 1,000.00", "1000"),
        ("The answer is $1,000.00.", "1000"),
        ("It costs $5.", "5"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        (r"\$5", "5"),
        ("€ 5", "5"),
        ("The answer is 50 %.", "50"),
        ("50%", "50"),
        ("18.", "18"),
        ("18.50", "18.5"),
        (".5", "0.5"),
        ("007", "7"),
        ("-0", "0"),
        ("−7", "-7"),
        ("10-5", "5"),
        ("10 - 5", "5"),
        ("(2)-5", "5"),
        ("x = -5", "-5"),
        ("3/4", "0.75"),
        ("1/3", "1/3"),
        ("2/6", "1/3"),
        ("5/0", "5"),
        ("12,345,678.90", "12345678.9"),
        ("1,2,3", "3"),
        (r"\boxed{18}", "18"),
        ("**18**", "18"),
        ("The answer is **$1,234**.", "1234"),
        ("3 + 4 = 7", "7"),
        ("The final answer is 5, because 2 + 3.", "5"),
        ("The answer is 3. No: the answer is 4. That took 2 tries.", "4"),
        ("Answer: 6 (of 10)", "6"),
        ("I get 8, so the answer is", "8"),
        ("#### 1,080\n", "1080"),
        ("٣ x²", None),
        ("The answer is unknown", None),
        ("", None),
    ],
)
def test_final_number(text, number):
    assert final_number(text) == number


@given(st.integers(-(10**30), 10**30), st.integers(0, 6), st.booleans())
def test_writing_a_number_differently_does_not_matter(units, places, commas):
    value = Fraction(units, 10**places)
    whole, rest = divmod(abs(units), 10**places)
    text = f"{whole:,}" if commas else f"{whole}"
    text = ("-" if units < 0 else "") + text + (f".{rest:0{places}d}" if places else "")
    for written in (text, f"${text}", f"{text}%", f"{text}.", f"The answer is {text}"):
        assert Fraction(final_number(written)) == value
    assert final_number(final_number(text)) == final_number(text)


def test_a_model_that_repeats_a_digit_for_ever_gets_an_answer():
    assert final_number("3" * 100_000) == "3" * 100_000
