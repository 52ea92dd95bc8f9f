"""Nodes that the autoscaler of a test starts: further raylets on this machine. Imported by the autoscaler itself."""

import tempfile
from functools import partial
from unittest import mock

from ray._private.parameter import RayParams
from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider


class FakeNodes(FakeMultiNodeProvider):
    """Ray's own, with a folder for each node: in a common one, each new node unpacks the working directory of a
    submitted job anew, and so takes it away from the workers of the others."""

    def _create_node_with_resources_and_labels(self, *arguments):
        folder = tempfile.mkdtemp(prefix="n", dir=self.provider_config["folder"])
        with mock.patch("ray._private.parameter.RayParams", partial(RayParams, temp_dir=folder)):
            super()._create_node_with_resources_and_labels(*arguments)
