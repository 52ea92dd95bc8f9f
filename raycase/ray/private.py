"""What raycase changes in Ray's own modules, for want of a public option, so that a Ray of one machine listens on
127.0.0.1 alone.

A test names each attribute, so that a Ray which renames one is noticed.
"""

from ray._private import ray_constants


def listen_locally() -> None:
    """Have the Ray that starts next listen on 127.0.0.1: on Linux all its processes would listen on every interface.
    An argument of `ray.init` for the address would replace this."""
    assert hasattr(ray_constants, "ENABLE_RAY_CLUSTER"), "expected the Ray of constraints.txt"
    ray_constants.ENABLE_RAY_CLUSTER = False


def serve_locally() -> None:
    """Have the replica that starts in this process listen on 127.0.0.1 for calls of other deployments: it would listen
    on every interface. An address in `ray.serve.config.HTTPOptions` for replicas would replace this."""
    from ray.serve._private import replica  # of the extra `serve`

    add = replica.add_port_to_grpc_server
    replica.add_port_to_grpc_server = lambda server, at: add(server, at.replace("[::]", "127.0.0.1"))
