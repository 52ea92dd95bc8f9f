"""What of Ray's own modules is changed: a Ray that renames it is noticed here."""

from ray._private import ray_constants
from ray.serve._private import replica

from raycase.ray.private import listen_locally, serve_locally


def test_what_is_changed_is_there(monkeypatch):
    asked = []
    monkeypatch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", True)
    monkeypatch.setattr(replica, "add_port_to_grpc_server", lambda server, at: asked.append((server, at)))
    listen_locally()
    serve_locally()
    replica.add_port_to_grpc_server("a server", "[::]:0")
    assert asked == [("a server", "127.0.0.1:0")] and ray_constants.ENABLE_RAY_CLUSTER is False
