"""The interactive view as files: JSON that `grape view` reads, and one HTML page that needs nothing else."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from html import escape
from typing import Any

from ...errors import UsageError
from ..timeline.view import VERSION, View

_FORMAT = "grape-view"
_LARGEST_BLOB = 2**30

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Grape: {title}</title>
<style>
body {{ margin: 1rem auto; max-width: 90rem; padding: 0 min(1rem, 2vw); }}
{style}
</style>
</head>
<body>
<main><div id="grape-view"><noscript>This page draws its timelines with JavaScript.</noscript></div></main>
<script type="application/json" id="grape-data">{data}</script>
<script type="module">
{script}
startPage(document.getElementById("grape-view"), document.getElementById("grape-data").textContent);
</script>
</body>
</html>
"""


def view_json(view: View) -> str:
    """The view as JSON text: its plain values, and its columns compressed (zlib, base64)."""
    blob = base64.b64encode(zlib.compress(view.blob, 6)).decode("ascii")
    content = {"format": _FORMAT, "version": VERSION, "view": view.data, "columns": blob}
    return json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n"


def read_view(text: str, name: str) -> View:
    """The view that `view_json` wrote. `name` is the file's, for the message of the `UsageError` where it is none."""
    try:
        content: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"'{name}' is not JSON: {error}") from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise UsageError(f"'{name}' holds no view; %grape view FILE.json writes one in a notebook")
    if content.get("version") != VERSION:
        raise UsageError(f"'{name}' is of version {content.get('version')}; this Grape reads version {VERSION}")
    try:
        unpack = zlib.decompressobj()
        blob = unpack.decompress(base64.b64decode(content["columns"], validate=True), _LARGEST_BLOB)
        data = content["view"]
        if not unpack.eof or _needed(data) > len(blob):
            raise ValueError("its columns are cut off")
    except (KeyError, TypeError, ValueError, binascii.Error, zlib.error) as error:
        raise UsageError(f"'{name}' is damaged: {error}") from None
    return View(data=data, blob=blob)


def _needed(data: Any) -> int:
    """The bytes of columns that `data` speaks of."""
    from ..timeline.columns import BYTES_PER_EVENT

    ends = [timeline["offset"] + timeline["events"] * BYTES_PER_EVENT for timeline in data["timelines"]]
    memory = data["memory"]
    ends += [curve["offset"] + 4 * memory["samples"] for curve in memory["curves"]]
    return max(ends, default=0)


def view_page(view: View, *, script: str, style: str) -> str:
    """One page that stands alone, from the widget's own `script` and `style`."""
    safe = view_json(view).replace("<", "\\u003c")
    return _PAGE.format(title=escape(view.data["verdict"]), style=style, script=script, data=safe)
