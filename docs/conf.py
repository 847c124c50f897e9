"""The site: ``make docs``. The source folder is the repository; what is a page stands below.

So pages link to READMEs, examples and pictures where they are, as they do in an editor.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from docutils import nodes  # noqa: E402

import pyg_sar  # noqa: E402

project = 'pyg_sar'
release = version = pyg_sar.__version__
copyright = 'pyg_sar contributors'

root_doc = 'docs/index'
include_patterns = [
    'docs/**.md',
    'benchmarks/*/README.md',
    'examples/*/README.md',
    'CONTRIBUTING.md',
    'CHANGELOG.md',
    'examples/tutorial.ipynb',
]
exclude_patterns = ['.*', 'build', 'parts', 'benchmarks/.*']
extensions = [
    'myst_nb',  # myst_parser, and notebooks as pages
    'sphinx.ext.autodoc',
    'sphinx.ext.napoleon',
    'sphinx.ext.viewcode',
    'sphinx_copybutton',
]
nitpicky = True
nitpick_ignore_regex = [
    ('py:.*', r'(?!pyg_sar\b).*'),  # other libraries: no inventory at hand
    ('py:mod', '.*'),  # rooms that are not public
    (
        'py:class',
        r'pyg_sar\.(loader\.arguments\.LoaderOptions|rows\.edges\.EdgeIndex|partition\.memmap\..*)',
    ),
]

nb_execution_mode = 'off'  # a test runs the notebook; the page shows its saved output
myst_heading_anchors = 4
myst_enable_extensions = ['colon_fence', 'attrs_inline']

autodoc_typehints_format = 'short'
autodoc_member_order = 'bysource'
python_use_unqualified_type_names = True
napoleon_use_ivar = True  # of records: beside the fields that autodoc finds
napoleon_custom_sections = [('Shapes', 'notes_style')]

html_theme = 'furo'
html_title = f'pyg_sar {release}'
html_static_path = ['_static']
html_css_files = ['site.css']
html_favicon = '_static/favicon.svg'
html_extra_path = ['_site']  # index.html, which leads to this folder
html_show_sourcelink = False
if 'GITHUB_REPOSITORY' in os.environ:  # what publishes the site knows where its source is
    html_theme_options = {
        'source_repository': f'https://github.com/{os.environ["GITHUB_REPOSITORY"]}/',
        'source_branch': 'main',
        'source_directory': '',
    }

_LINK = re.compile(r'(\]\()([^)\s#]+)')


def _links_from_here(app, path, docname, text):
    """Makes the relative links of an included file relative to the page that includes it."""
    page = (ROOT / app.env.docname).parent

    def moved(link: re.Match[str]) -> str:
        target = (ROOT / path).parent / link[2]
        known = '://' not in link[2] and target.exists()
        return link[1] + (os.path.relpath(target, page) if known else link[2])

    text[0] = _LINK.sub(moved, text[0])


def _caption_pictures(app, doctree):
    """Shows the text of a picture below it."""
    for number, image in enumerate(list(doctree.findall(nodes.image))):
        if isinstance(image.parent, nodes.paragraph) and len(image.parent) == 1:
            caption = nodes.caption('', image['alt'])
            name = f'picture-{number}'
            image.parent.replace_self(nodes.figure('', image.deepcopy(), caption, ids=[name]))


def _pages_of_names(app, env, added, changed, removed):
    """Pages to read anew in every build: MyST does not note that docstrings are in them."""
    return [page for page in env.found_docs if page.startswith('docs/api/')]


def setup(app):
    """Called by Sphinx."""
    app.connect('env-get-outdated', _pages_of_names)
    app.connect('doctree-read', _caption_pictures)
    app.connect('include-read', _links_from_here)
