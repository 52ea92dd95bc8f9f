"""The only room that imports Ray: clusters, jobs on Ray Data, Ray Train and Ray Tune."""

import os

# Ray Data reserves CPUs for an execution and renews that every 10 s; what a killed driver had reserved would keep the
# next job on its cluster waiting for three minutes. Read when `ray.data` is imported, for all executions of a process;
# a driver that stands still for so long waits for its own reservation.
os.environ.setdefault("RAY_DATA_AUTOSCALING_REQUEST_EXPIRE_TIME_S", "30")
