"""Run a local Ray cluster of two nodes and print its address.

A line of input ends one node, and the end of input the whole cluster. Ray's variables,
such as its token, are those of the process.
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster


def main() -> None:
    """Start the cluster and obey standard input."""
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    print(cluster.address, flush=True)
    if sys.stdin.readline():
        cluster.remove_node(second)
        print("removed", flush=True)
        sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
