"""Lists of edges in other forms, whose lines could be read as edges between names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyg_sar.partition.sources import text_lines
from pyg_sar.partition.sources.text_lines import Piece

_NUMBER = r'-?\d+(\.\d*)?'
_ARROW = r'(-+>|--+|=+>|<-+>?)'
_EDGE_A_LINE = 'write an edge in each line, such as 0,1'
_FORMS = {
    rf'{_NUMBER}[\s,;]+{_NUMBER}([\s,;]+{_NUMBER})*\s*(#|\s%).*': (
        'a comment behind an edge',
        'write comments on lines of their own',
    ),
    r'(?=.*,)-?\d+([.,]\d+)*([;\s]+-?\d+([.,]\d+)*)+': (
        'decimal commas, or lists of ids',
        'write decimal points, and an edge in each line',
    ),
    rf'{_NUMBER}(\s*,\s*{_NUMBER})+\s*;': ('a semicolon behind an edge', 'leave it out'),
    r'\d+\s*:(\s[\d\s,;:.]*)?|\d+(\s+\d+:[\d.]+)+': ('a list of neighbours', _EDGE_A_LINE),
    rf'(\S+\s+{_ARROW}\s|\d+{_ARROW}\d).*': (
        'an arrow between ids',
        _EDGE_A_LINE,
    ),
    r'[(\[{<]+\s*\d+\s*,\s*\d+.*': ('an edge in brackets', _EDGE_A_LINE),
}
"""What a line of a form looks like, the name of the form, and what to do."""

_DIMACS = re.compile(
    r'c(\s.*)?|[pt]\s+\S+(\s+\d+)*\s*|[ea]\s+\d+\s+\d+(\s+[-\d.]+)?\s*|[nv]\s+\d+(\s.*)?'
)


def check_form(piece: Piece, texts: Sequence[str], *, is_konect: bool) -> None:
    """Raises ValueError of a file whose first lines, `texts`, are in another form."""
    if piece.number == 0 and text_lines.is_matrix_market(piece):
        raise ValueError(
            f"expected edges alone in '{piece.path}' (got '%%MatrixMarket', which has a line of "
            'sizes in front of them): name the file .mtx'
        )
    if piece.number == 0 and not is_konect and text_lines.is_konect(piece):
        raise ValueError(
            f"expected a file of KONECT alone, without other tables (got '{piece.path}', which "
            f"begins with '% {piece.comments()[0]}'): take that line out to read ids as they are"
        )
    if '{' in texts[0] and texts[0].rstrip().endswith('}'):
        raise ValueError(
            f"expected numbers beside the ids in the first line of '{piece.path}' (got "
            f'{texts[0][:80]!r}): networkx.write_edgelist(graph, path, data=False), or '
            "data=['weight'], leaves names of attributes out"
        )
    lines = [text.strip() for text in texts]
    found = [(pattern, line) for pattern in _FORMS for line in lines if re.fullmatch(pattern, line)]
    what, remedy = _FORMS[found[0][0]] if found else ('', '')
    if not found and all(map(_DIMACS.fullmatch, lines)):
        found = [('', line) for line in lines if line[0] in 'ea' and len(line.split()) > 2]
        what, remedy = 'lines of DIMACS', 'leave out c and p lines, and the letters e and a'
    if found:
        raise ValueError(
            f"expected ids and numbers alone in the lines of '{piece.path}' (got "
            f'{found[0][1][:80]!r}, {what}): {remedy}'
        )
