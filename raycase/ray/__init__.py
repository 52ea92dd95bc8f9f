"""The only room that imports Ray: clusters, and work on Ray Data, Ray Train, Ray Tune and Ray Serve."""

import os

# Ray reads both when it is imported. Ray Data reserves CPUs for an execution and renews that every 10 s; what a killed
# driver had reserved would keep the next job on its cluster waiting for three minutes.
os.environ.setdefault("RAY_DATA_AUTOSCALING_REQUEST_EXPIRE_TIME_S", "30")
# A thread that outlives the Ray that it reads from must not start another one.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
