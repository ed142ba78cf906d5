"""
The second cliff
================

Past a pod the ways lead over spine switches. Whether that is a cliff depends on oversubscription: with as much bandwidth upwards as downwards there is
none. A ring leaves a pod only once per rail; an all-to-all leaves it with most of its bytes. Pods of 32 servers, a parameter of the cluster file.
"""

import parasim as ps
from beside import beside


def per_rank(oversubscription, servers):
    """GB/s of one rank per server that all send to ranks of another pod at once."""
    cluster = {"base": "h100-hgx-ib400", "scale_out": {"pod_nodes": 4, "oversubscription": oversubscription}}
    row = ps.time_collective(cluster, "all_to_all", [8 * i for i in range(servers)], 256_000_000)[0]
    return row["busbw_Bps"] / 1e9


sizes = (2, 4, 8, 16, 32)
series = {f"oversubscription {o}": [(8 * n, per_rank(o, n)) for n in sizes] for o in (1, 2, 7)}
figure = ps.plots.curves(series, "GPUs that the servers hold", "bus bandwidth of an all-to-all (GB/s)", "beyond a pod of four servers", logx=True)

# %%
# The share of a port that is left for bytes that leave the pod is one over the oversubscription:


def up(oversubscription):
    cluster = ps.load_cluster({"base": "h100-hgx-ib400", "scale_out": {"pod_nodes": 4, "oversubscription": oversubscription}}, 64)
    down = sum(link.bandwidth for link in cluster.links if link.kind == "leaf" and link.b == "pod0.leaf0")
    return sum(link.bandwidth for link in cluster.links if link.kind == "spine" and link.a == "pod0.leaf0") / down


beside(*((f"oversubscription {o}", 1 / o, up(o)) for o in (1, 2, 7)), rel=0.02)
