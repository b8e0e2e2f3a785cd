"""A hub of rules on the loopback: what `huggingface_hub` asks of a server to download files."""

import contextlib
import hashlib
import http.server
import json
import threading
import urllib.parse
from collections.abc import Iterator, Mapping

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class _Handler(http.server.BaseHTTPRequestHandler):
    repositories: Mapping[str, Mapping[str, bytes]]
    requests: list[str]

    def do_HEAD(self):
        self._answer()

    def do_GET(self):
        self._answer()

    def log_message(self, format, *args):
        self.requests.append(f"{self.command} {self.path}")

    def _answer(self) -> None:
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).strip("/")
        is_listing = path.startswith("api/models/")
        words = path.removeprefix("api/models/").split("/")
        repository, (_, revision), file = "/".join(words[:2]), words[2:4], "/".join(words[4:])
        files = self.repositories.get(repository)
        if files is None:
            self._send(404, error="RepoNotFound")
        elif repository.endswith("/gated"):
            self._send(403, error="GatedRepo")
        elif revision not in ("main", "v1", COMMIT):
            self._send(404, error="RevisionNotFound")
        elif is_listing:
            sizes = {x: len(content) for x, content in files.items()}
            entries = [{"type": "file", "path": x, "size": n, "oid": "0"} for x, n in sizes.items()]
            self._send(200, json.dumps(entries).encode(), kind="application/json")
        elif file not in files:
            self._send(404, error="EntryNotFound")
        else:
            self._send(200, files[file])

    def _send(self, status: int, content: bytes = b"", error: str = "", kind: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind or "application/octet-stream")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        if error:
            self.send_header("X-Error-Code", error)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@contextlib.contextmanager
def serving(
    repositories: Mapping[str, Mapping[str, bytes]],
) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Serves files by repository and path; each repository has the revisions main, v1, `COMMIT`.

    Returns:
      What a process must have in its environment to ask this server, without its own cache; and the
      requests so far, a list that grows.
    """
    requests: list[str] = []
    handler = type("Handler", (_Handler,), {"repositories": repositories, "requests": requests})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        environment = {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "NO_PROXY": "127.0.0.1",
        }
        yield environment, requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
