"""Text as it is set: in lines, of whole words."""

from turnwise.diagrams.markup import Pen


def test_a_word_wider_than_its_column_stays_whole() -> None:
    assert Pen(10, "black").lines("a_trigger_of_a_very_long_name on", 30) == ["a_trigger_of_a_very_long_name", "on"]
