"""
RDMA, and the way through the CPU
=================================

NVLink, InfiniBand and RoCE move bytes past the CPU. Plain Ethernet does not: the bytes lie in the memory of the host on both sides.
"""

import parasim as ps
from beside import Table, beside


def way(cluster):
    """Kinds of links and latency from the first device of one server to the first of another."""
    found = ps.load_cluster(cluster, 16)
    first, other = found.devices[0], next(d for d in found.devices if found.node_of[d] != found.node_of[found.devices[0]])
    links = [found.links[i] for i in found.route(first, other)]
    return " > ".join([links[0].a, *(link.b for link in links)]), [link.kind for link in links], sum(link.latency for link in links)


rdma, tcp = way("a100-hgx-ib200"), way("a100-hgx-tcp")
Table(("cluster", "way", "latency, us"), [("a100-hgx-ib200", rdma[0], 1e6 * rdma[2]), ("a100-hgx-tcp", tcp[0], 1e6 * tcp[2])])

# %%

beside(
    ("host memory on the RDMA way", False, "host" in rdma[1]),
    ("host memory on the TCP way, times", 2, tcp[1].count("host")),
    ("PCIe on the TCP way, times", 2, tcp[1].count("pcie")),
    ("latency, TCP over RDMA", (5, 100), tcp[2] / rdma[2]),
)
