"""The tool that runs published scripts sees what differs, and changes the lines that it names."""

from __future__ import annotations

import json
import re
import sys

import pytest
import torch
from pages import ROOT

sys.path.insert(0, str(ROOT / 'tools' / 'published'))

import main
from compare import difference
from record import Record
from scripts import ChangedError, Script, edited, new_lines, ported, with_saved_graphs

TEXTS = {
    'gcn.py': """\
from __future__ import annotations
import torch
data = dataset[0].to(device)
def train():
    optimizer = torch.optim.Adam(model.parameters())
"""
}
PORT = """\
from __future__ import annotations
import pyg_sar; pyg_sar.init()
import torch
data = pyg_sar.load_shard('parts0').to(device)
def train():
    model = pyg_sar.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters())
"""


def _record(parameter: float = 1.0, gradient: float = 0.1, line: str = 'Loss: 0.5') -> Record:
    pair = [torch.tensor([each, 2 * each]).double() for each in (1.0, 0.1)]
    pair[0][0], pair[1][0] = parameter, gradient
    return Record([[*pair]], [line])


def test_a_port_has_the_promised_lines() -> None:
    script = Script('examples/gcn.py')
    port = ported(TEXTS, script, is_more=False)
    assert port == {'gcn.py': PORT}
    assert new_lines(TEXTS, port) == 3
    assert 'data = saved(dataset[0], 0).to(' in with_saved_graphs(TEXTS, script)['gcn.py']


def test_lines_beyond_the_promised_ones() -> None:
    script = Script('examples/gcn.py', more=(('(device)', '(pyg_sar.gather(device))'),))
    assert 'gather(device)' in ported(TEXTS, script, is_more=True)['gcn.py']


def test_a_script_that_has_changed_is_told() -> None:
    with pytest.raises(ChangedError, match=r"'import' is at 2 places \(expected 1\)"):
        edited(TEXTS, [('import', 'export')])


def test_equal_runs() -> None:
    assert difference(_record(), _record(1 + 1e-10, 0.1 + 1e-11)) == ''
    assert difference(_record(line='Time: 1.25s'), _record(line='Time: 7.5s')) == ''


@pytest.mark.parametrize(
    ('port', 'said'),
    [
        (_record(1 + 1e-8), 'step 1, parameter 0: off by 1.0e-08'),
        (_record(gradient=0.1 + 1e-9), 'step 1, gradient 0: off by 1.0e-09'),
        (_record(gradient=float('nan')), 'step 1, gradient 0: off by nan'),
        (_record(line='Loss: 0.500001'), "printed 'Loss: 0.500001' for 'Loss: 0.5'"),
        (_record(line='Loss: inf'), "printed 'Loss: inf' for 'Loss: 0.5'"),
        (Record([], ['Loss: 0.5']), '0 steps for 1'),
        (Record(_record().steps, []), '0 lines for 1'),
        (Record([[None, None]], ['Loss: 0.5']), 'a gradient is missing'),
    ],
)
def test_what_differs_is_told(port: Record, said: str) -> None:
    assert said in difference(_record(), port)


def test_the_steps_before_an_error_are_compared() -> None:
    assert 'off by' in difference(_record(), Record(_record(2.0).steps, [], error='refused'))
    assert difference(_record(), Record([], [], error='refused')) == ''


def test_the_page_is_that_of_the_results() -> None:
    facts = json.loads((ROOT / 'tools' / 'published' / 'results.json').read_text(encoding='utf-8'))
    assert (ROOT / 'docs' / 'published.md').read_text(encoding='utf-8') == main.page(facts)


def test_the_readme_has_the_counts_of_the_page() -> None:
    page = (ROOT / 'docs' / 'published.md').read_text(encoding='utf-8')
    counts = {what: int(n) for what, n in re.findall(r'^\| \*([\w ]+)\* \| (\d+) \|', page, re.M)}
    exact, more = counts['exact'], counts['exact with more lines']
    readme = ' '.join((ROOT / 'README.md').read_text(encoding='utf-8').split())
    words = (
        f'Of {sum(counts.values())} scripts of PyG {exact} are exact with the lines below alone,'
    )
    assert f'{words} {more} with a few more' in readme
    assert counts['WRONG'] == 0
