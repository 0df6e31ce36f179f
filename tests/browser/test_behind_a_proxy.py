"""A server behind a proxy, as JupyterHub runs them: another port, and a path in front of everything."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.browser.notebooks import FIXABLE, LOOP, MODEL, run_all, run_code, wait_for_notebook, write
from tests.browser.pages import colours_in, wait_for_view
from tests.browser.server import serve

BASE = "/user/somebody/"


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy(port: int) -> Iterator[int]:
    """The port of a proxy of the server on this machine's `port`: what comes is passed on as it is."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    came, _ = listening.accept()
                    onward = socket.create_connection(("127.0.0.1", port))
                    for ends in ((came, onward), (onward, came)):
                        threading.Thread(target=_pass_on, args=ends, daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield int(listening.getsockname()[1])
        finally:
            listening.shutdown(socket.SHUT_RDWR)  # which wakes it: it runs code of ours, beside which no stream opens
            thread.join()


def test_report_view_and_buttons_work_there(open_page: Callable[..., Any], tmp_path: Path) -> None:
    with serve(tmp_path, BASE) as jupyter, proxy(urlsplit(jupyter.url).port or 0) as port:
        write(jupyter.folder, "far.ipynb", MODEL, LOOP, FIXABLE)
        outside = f"http://127.0.0.1:{port}"
        page = open_page(f"{outside}{BASE}lab/tree/far.ipynb?reset")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        wait_for_notebook(page)
        run_all(page)
        page.wait_for_function("document.querySelectorAll('.grape-report').length === 2")
        wait_for_view(page)
        page.locator(".grape-report").first.scroll_into_view_if_needed()
        assert colours_in(page, "before") > 4
        view = page.locator(".grape-report").last
        view.get_by_role("button", name="Show a rewrite for GR101 at In[3], line 5").click()
        view.get_by_role("button", name="Apply GR101 at In[3], line 5").click()
        view.get_by_text("In[3] holds the rewrite now: run it", exact=True).wait_for()
        assert "source of In[3]: fix" in run_code(page, "%grape status")
        elsewhere = [url for url in asked if not url.startswith((f"{outside}{BASE}", "blob:", "data:"))]
        assert elsewhere == []
        page.context.close()
