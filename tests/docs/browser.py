"""Opens every page of a site in Chromium and prints what is wrong with it, a line for each fault.

    .venv-docs/bin/python tests/docs/browser.py build/docs SCREENSHOTS

At two widths, those of a desk and of a telephone: errors and warnings of the console, requests that
fail, and pages that are wider than the screen. Screenshots of all pages go to the folder.
"""

from __future__ import annotations

import http.server
import shutil
import sys
import threading
from functools import partial
from pathlib import Path

from playwright.sync_api import Page, Request, sync_playwright

WIDTHS = 1280, 390
WIDEST = """() => {
    const screen = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth <= screen) return null;
    const wide = [...document.querySelectorAll('main *, article *, header *')]
        .filter(e => e.getBoundingClientRect().right > screen + 1);
    return wide.length ? wide.at(-1).outerHTML.slice(0, 160) : 'an element outside of main';
}"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


def main(site: Path, screenshots: Path) -> int:
    pages = sorted(path.relative_to(site) for path in site.rglob('*.html'))
    handler = partial(_Quiet, directory=str(site))
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f'http://127.0.0.1:{server.server_port}'
    faults: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which('chromium'), args=['--no-sandbox']
        )
        for width in WIDTHS:
            page = browser.new_page(viewport={'width': width, 'height': 900})
            _watch(page, width, faults)
            for path in pages:
                page.goto(f'{address}/{path}', wait_until='load')
                if path == Path('index.html'):
                    page.wait_for_url('**/docs/index.html')
                    continue
                widest = page.evaluate(WIDEST)
                if widest is not None:
                    faults.append(f'{path} at {width}: wider than the screen: {widest}')
                name = '-'.join(path.with_suffix('').parts)
                page.screenshot(path=screenshots / f'{name}-{width}.png', full_page=True)
            page.close()
        browser.close()
    print(f'{len(pages)} pages at {len(WIDTHS)} widths')
    print('\n'.join(faults))
    return len(faults) > 0


def _watch(page: Page, width: int, faults: list[str]) -> None:
    def found(what: object) -> None:
        faults.append(f'{page.url} at {width}: {what}')

    page.on('console', lambda m: found(m.text) if m.type in ('error', 'warning') else None)
    page.on('pageerror', found)
    page.on('requestfailed', lambda r: found(f'{r.failure} at {r.url}') if _is_lost(r) else None)
    page.on('response', lambda r: found(f'{r.status} from {r.url}') if r.status >= 400 else None)


def _is_lost(request: Request) -> bool:
    """Whether there was no answer, rather than the browser moving on before it came."""
    return request.failure != 'net::ERR_ABORTED'


if __name__ == '__main__':
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    sys.exit(main(Path(sys.argv[1]), folder))
