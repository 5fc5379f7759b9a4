"""The layout by hand: every arrow has its way, and each way leads from border to border."""

from turnwise.diagrams import layout
from turnwise.diagrams.extract import machine
from turnwise.diagrams.grouping import SAME, arrows
from turnwise.diagrams.markup import rounded


def test_every_arrow_has_a_way_laid_out_by_hand_and_no_way_is_left_over() -> None:
    """A new row still draws a straight line; this says that someone must find it a better way."""
    needed = {(arrow.origin, arrow.target) for arrow in arrows(machine()) if arrow.target != SAME}
    assert needed == layout.ROUTES.keys()


def test_an_arrow_starts_and_ends_on_the_borders_of_what_it_joins() -> None:
    for (origin, target), route in layout.ROUTES.items():
        for name, (x, y) in ((origin, route.points[0]), (target, route.points[-1])):
            box = {**layout.BOXES, **layout.FRAMES}[name]
            assert box.x <= x <= box.x + box.width
            assert box.y <= y <= box.y + box.height
            assert x in (box.x, box.x + box.width) or y in (box.y, box.y + box.height)


def test_an_arrow_nobody_has_laid_out_is_a_straight_line() -> None:
    assert ("waiting", "streaming") not in layout.ROUTES
    way = layout.route("waiting", "streaming")
    assert way is not None
    assert len(way.points) == 2
    assert rounded(way.points).count("L") == 1
