"""Stop strings, and the text that is held back because it may begin one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stubserver.engine.output_text import OutputText


def feed(text: OutputText, pieces: list[str]) -> tuple[list[str], str | None]:
    """(what each piece shows, the stop string)."""
    shown = []
    for number, piece in enumerate(pieces):
        stop = text.append(piece, look_for_stop=True)
        shown.append(text.take(finished=stop is not None or number == len(pieces) - 1))
        if stop is not None:
            return shown, stop
    return shown, None


def test_without_stop_strings_nothing_is_held_back() -> None:
    assert feed(OutputText([], False), ["ab", "", "c"]) == (["ab", "", "c"], None)


def test_the_longest_stop_string_less_one_character_is_held_back() -> None:
    """Of "abc", "xyz" may have begun with "bc"."""
    assert feed(OutputText(["xyz", "!"], False), ["abc", "de", "f"]) == (["a", "bc", "def"], None)


def test_text_with_the_stop_string_is_shown_at_once() -> None:
    assert feed(OutputText(["xyz"], True), ["abc", "xy", "zzz"]) == (["abc", "xy", "z"], "xyz")


def test_a_stop_string_is_cut_out_with_what_follows() -> None:
    assert feed(OutputText(["xyz"], False), ["abxyzcd"]) == (["ab"], "xyz")


def test_a_stop_string_is_found_over_several_pieces() -> None:
    assert feed(OutputText(["xyz"], False), ["ax", "y", "zb"]) == (["", "a", ""], "xyz")


def test_a_stop_string_of_one_character_holds_nothing_back() -> None:
    assert feed(OutputText(["."], False), ["ab", "c.d"]) == (["ab", "c"], ".")


def test_the_stop_string_that_ends_first_wins() -> None:
    """In "a-long-b" "long-b" begins first, but "ng" ends first."""
    assert feed(OutputText(["long-b", "ng"], False), ["a-long-b"]) == (["a-lo"], "ng")


def test_of_two_that_end_together_the_first_listed_wins() -> None:
    assert feed(OutputText(["bc", "abc"], False), ["abc"]) == (["a"], "bc")
    assert feed(OutputText(["abc", "bc"], False), ["abc"]) == ([""], "abc")


def test_included_text_ends_with_the_stop_string() -> None:
    assert feed(OutputText(["bc"], True), ["abcd"]) == (["abc"], "bc")


def test_a_stop_string_is_not_looked_for_before_it_may_stop() -> None:
    text = OutputText(["b"], False)
    assert text.append("ab", look_for_stop=False) is None
    assert text.append("a", look_for_stop=True) is None
    assert text.append("b", look_for_stop=True) == "b"
    assert text.take(finished=True) == "aba"


def test_a_stop_string_that_began_before_it_may_stop_counts() -> None:
    """Its end is what has to come late enough."""
    text = OutputText(["abc"], False)
    assert text.append("ab", look_for_stop=False) is None
    assert text.append("c", look_for_stop=True) == "abc"
    assert text.take(finished=True) == ""


PIECES = st.lists(st.text("ab", max_size=3), max_size=8)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3)


@settings(derandomize=True, deadline=None)
@given(pieces=PIECES, stops=STOPS, include=st.booleans())
def test_what_is_shown_is_the_text_up_to_the_first_end_of_a_stop_string(
    pieces: list[str], stops: list[str], include: bool
) -> None:
    whole = "".join(pieces)
    ends = {whole.find(stop) + len(stop): stop for stop in reversed(stops) if stop in whole}
    shown, found = feed(OutputText(stops, include), pieces)
    if not ends:
        assert ("".join(shown), found) == (whole, None)
    else:
        end = min(ends)
        assert found == ends[end]
        assert "".join(shown) == whole[: end if include else end - len(ends[end])]


@pytest.mark.parametrize("include", [False, True])
def test_what_is_not_finished_can_be_shown_later(include: bool) -> None:
    text = OutputText(["cd"], include)
    text.append("abc", look_for_stop=True)
    first = text.take(finished=False)
    assert first == ("abc" if include else "ab")
    assert first + text.take(finished=True) == "abc"
    assert text.take(finished=True) == ""
