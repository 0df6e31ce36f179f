"""The trace as Perfetto's page reads it: its own parser, a WebAssembly program, in a worker of a real browser.

`make perfetto` puts the parser's files beside the environment; GRAPE_PERFETTO names another folder that has them.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from grape.render import build_report
from tests.integration.test_perfetto import QUERY
from tests.unit.sample_evidence import sample

PARSER = Path(os.environ.get("GRAPE_PERFETTO") or Path(sys.prefix) / "perfetto")
FILES = ("engine.mjs", "engine_bundle.node.js", "trace_processor.wasm")

pytestmark = pytest.mark.skipif(
    not all((PARSER / name).is_file() for name in FILES), reason="no parser of Perfetto's: make perfetto fetches it"
)

# The page talks to the worker as Perfetto's does: a port, and messages of its own protocol in both directions.
PAGE = """\
<!doctype html><title>Perfetto's parser</title><script type="module">
window.process = { env: { NODE_ENV: "production" } };
const { EngineBase } = await import("./engine.mjs");
class Engine extends EngineBase {
  mode = "WASM";
  id = "grape";
  constructor(port) {
    super();
    this.port = port;
    port.onmessage = (message) => this.onRpcResponseBytes(message.data);
  }
  rpcSendRequestBytes(data) {
    this.port.postMessage(data);
  }
}
window.read = async (trace, query) => {
  const { port1, port2 } = new MessageChannel();
  new Worker("worker.js").postMessage(port1, [port1]);
  const engine = new Engine(port2);
  await engine.parse(new Uint8Array(await (await fetch(trace)).arrayBuffer()));
  await engine.notifyEof();
  const rows = [];
  const found = await engine.query(query);
  for (const it = found.iter({ what: "str", n: 0 }); it.valid(); it.next()) rows.push([it.what, it.n]);
  return rows;
};
</script>
"""

# The parser for 64-bit memory is another file. The probe for such memory is the only module of 23 bytes.
WORKER = """\
const { Module } = WebAssembly;
WebAssembly.Module = function (bytes) {
  if (bytes.length === 23) throw new Error("32 bits");
  return new Module(bytes);
};
WebAssembly.Module.prototype = Module.prototype;
importScripts("engine_bundle.node.js");
"""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_all_is_read_and_none_is_dropped(open_page: Any, tmp_path: Path) -> None:
    report = build_report(*sample())
    trace = tmp_path / "trace.json"
    report.to_chrome_trace(trace)
    wanted = Counter(event["ph"] for event in json.loads(trace.read_text())["traceEvents"])
    for name in FILES:
        (tmp_path / name).symlink_to(PARSER / name)
    (tmp_path / "worker.js").write_text(WORKER)
    (tmp_path / "page.html").write_text(PAGE)
    with served(tmp_path) as address:
        page = open_page(f"{address}/page.html")
        page.wait_for_function("() => Boolean(window.read)")
        read = dict(page.evaluate("([trace, query]) => read(trace, query)", [trace.name, QUERY]))
    assert (read.pop("slice"), read.pop("flow")) == (wanted["X"], wanted["s"])
    assert read.pop("counter") > 0
    assert read == {}, "errors that the parser counted"
