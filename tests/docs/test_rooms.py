"""The picture of the rooms shows the rooms and imports of the sources."""

from __future__ import annotations

import draw_rooms


def test_the_picture_of_the_rooms_is_current() -> None:
    drawn = draw_rooms.PICTURE.read_text(encoding='utf-8')
    assert drawn == draw_rooms.picture(), 'python tools/draw_rooms.py'


def test_every_room_has_a_box() -> None:
    rooms = {room for floor in draw_rooms.floors() for room in floor}
    folders = {path.parent.name for path in (draw_rooms.ROOT / 'pyg_sar').glob('*/__init__.py')}
    assert rooms == folders == set(draw_rooms.ROOMS)
