"""As much of a Kubernetes API server as the Collector asks: lists and watches, over HTTP."""

import json
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from tests.backends.processes import LOOPBACK

POD_PATH = "/api/v1/pods"
_BOOKMARK = {"k8s.io/initial-events-end": "true"}


class KubernetesApi:
    """
    Knows the pods of a node, and remembers what it was asked.

    Attributes:
        asked: The resource paths that clients have listed or watched.
        selectors: The field selectors that they did it with.
    """

    def __init__(self, pods: Sequence[Mapping[str, Any]]) -> None:
        self.asked: set[str] = set()
        self.selectors: set[str] = set()
        self._pods = pods
        self._ended = threading.Event()
        self._server = ThreadingHTTPServer((LOOPBACK, 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def write_kubeconfig(self, path: Path) -> Path:
        """Write the file that leads a client here."""
        server = f"http://{LOOPBACK}:{self._server.server_port}"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": server}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "users": [{"name": "test", "user": {}}],
        }
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                query = parse_qs(url.query)
                api.asked.add(url.path)
                api.selectors |= set(query.get("fieldSelector", ()))
                items = api._pods if url.path == POD_PATH else ()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                if "watch" not in query:
                    self._say({"kind": "PodList", "apiVersion": "v1", **_listed(items)})
                    return
                if "sendInitialEvents" in query:
                    for item in items:
                        self._say({"type": "ADDED", "object": item})
                    self._say({"type": "BOOKMARK", "object": _bookmark()})
                # Nothing changes any more; a watch ends when the server does.
                api._ended.wait()

            def _say(self, document: Mapping[str, Any]) -> None:
                self.wfile.write(json.dumps(document).encode() + b"\n")
                self.wfile.flush()

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def pod(
    name: str,
    *,
    uid: str,
    owner: str = "",
    container_id: str = "",
    image: str = "",
    ip: str = "10.0.0.9",
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A running pod of one container, of a Deployment's ReplicaSet when there is an owner."""
    owners = [
        {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "name": owner,
            "uid": "1",
            "controller": True,
        }
    ]
    container = name.partition("-")[0]
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "namespace": "training",
            "uid": uid,
            "resourceVersion": "7",
            "annotations": dict(annotations or {}),
            "labels": {"pod-template-hash": owner.rpartition("-")[2]},
            "ownerReferences": owners if owner else [],
        },
        "spec": {"nodeName": "gpu-node-7", "containers": [{"name": container, "image": image}]},
        "status": {
            "podIP": ip,
            "startTime": "2026-01-01T00:00:00Z",
            "containerStatuses": [
                {"name": container, "image": image, "containerID": f"containerd://{container_id}"}
            ],
        },
    }


def _listed(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": "7"}, "items": list(items)}


def _bookmark() -> dict[str, Any]:
    metadata = {"resourceVersion": "7", "annotations": _BOOKMARK}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": metadata}
