"""
The ladder of memory and network
================================

Every rung down is slower: memory of the device, the network inside a server, PCIe, the network card, Ethernet through the CPU.
"""

import parasim as ps
from beside import beside

hgx = ps.load_cluster("h100-hgx-ib400", 512)
tcp = ps.load_cluster("a100-hgx-tcp", 16)
figure = ps.plots.ladder(hgx)

# %%
# The same with A100 servers that reach each other by TCP over Ethernet: the way leads through the memory of the host on both sides.

other = ps.plots.ladder(tcp, "a100-hgx-tcp: Ethernet through the CPU")

# %%
# The ratios that the lectures name. NVLink 5 is quoted as 1.8 TB/s for both directions together, so that "about 4x" between HBM and NVLink hides a factor
# of two; 400 Gb/s are 50 GB/s, a ninth of an H100's NVLink ("about 8x").


def fastest(cluster, kind):
    return max(link.bandwidth for link in cluster.links if link.kind == kind)


b200, a100 = ps.load_cluster("b200-hgx-ib400", 16), ps.load_cluster("a100-hgx-ib200", 16)
hbm = b200.accelerator.memory_bandwidth.value
beside(
    ("B200: HBM over NVLink, both directions", 4.444, hbm / (2 * fastest(b200, "scale_up"))),
    ("B200: HBM over NVLink, one direction", 8.889, hbm / fastest(b200, "scale_up")),
    ("H100: NVLink over a 400 Gb/s port", 9.0, fastest(hgx, "scale_up") / fastest(hgx, "nic")),
    ("B200: the same", 18.0, fastest(b200, "scale_up") / fastest(b200, "nic")),
    ("A100: NVLink over 200 Gb/s", 12.0, fastest(a100, "scale_up") / fastest(a100, "nic")),
    ("H100: eight ports over one NVLink", 0.8889, 8 * fastest(hgx, "nic") / fastest(hgx, "scale_up")),
    head=("ratio", "lectures", "parasim"),
)
