"""Pictures, alone or with text as a page: one HTML file that opens without a network."""

from __future__ import annotations

import html
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_MOST_COLUMNS = 12  # up to which every cell of a heat map has its number

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 16px/1.4 sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em; }}
figure, pre {{ overflow-x: auto; margin: 1em 0; }}
pre {{ font-size: 12px; }}
svg {{ width: 100%; min-width: 45em; height: auto; }}
</style>
<h1>{title}</h1>
<figure>{picture}</figure>
<pre>{text}</pre>
</html>
"""


def new_figure(width: float, height: float) -> Any:
    """An empty figure of matplotlib, in inches, without a window whatever the backend."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError(
            f"a picture needs the package 'matplotlib' (got: {error}); "
            "install it with pip install 'pyg_sar[plot]'"
        ) from error
    return Figure(figsize=(width, height), layout='constrained')


def heat_map(
    figure: Any,
    axis: Any,
    values: Sequence[Sequence[float]],
    number: Callable[[float], str] = '{:,.0f}'.format,
    **options: Any,
) -> None:
    """Draws rows of values, with the number in every cell where there is room; none where NaN."""
    image = axis.imshow(values, cmap='Blues', vmin=0, **options)
    figure.colorbar(image, ax=axis, shrink=0.8)
    axis.xaxis.get_major_locator().set_params(integer=True)
    if len(values[0]) > _MOST_COLUMNS:
        return
    style = {'ha': 'center', 'va': 'center', 'fontsize': 8}
    known = {(x, y): v for y, row in enumerate(values) for x, v in enumerate(row) if v == v}
    darkest = max(known.values(), default=0)
    for (x, y), value in known.items():
        color = 'white' if value > darkest / 2 else 'black'
        axis.text(x, y, number(value), color=color, **style)


def save(figure: Any, path: str | os.PathLike[str], title: str, text: str) -> None:
    """Writes a page with the text below the picture if the name ends in .html, else the picture.

    Raises:
        ValueError: If matplotlib does not know the format.
        OSError: If the file cannot be written.
    """
    if os.path.splitext(path)[1] != '.html':
        figure.suptitle(title)
        figure.savefig(path, dpi=120, format=os.path.splitext(path)[1][1:] or 'png')
        return
    drawn = io.StringIO()
    figure.savefig(drawn, format='svg', metadata={'Date': None})
    picture = drawn.getvalue()
    page = _PAGE.format(
        title=html.escape(title),
        picture=picture[picture.index('<svg') :],
        text=html.escape(text),
    )
    Path(path).write_text(page, encoding='utf-8')
