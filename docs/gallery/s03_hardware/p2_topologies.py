"""
Servers, rails, racks and tori
==============================

Pictures of clusters of the catalog. Eight GPUs of a server meet in a switch; network card *i* of every server hangs on leaf *i*.
"""

import parasim as ps
from beside import beside

server = ps.load_cluster("h100-hgx-ib400", 16)
figure = ps.plots.cluster(server, "two servers of eight H100")

# %%
# A rack of 72 GPUs in one NVLink domain (18 trays of 4, not nine of eight):

rack = ps.load_cluster("nvl72-ib400", 72)
rack_figure = ps.plots.cluster(rack, "one NVL72 rack")

# %%
# A torus of TPUs: neighbours only, rings closed.

torus = ps.load_cluster("tpu-v4", 64)
torus_figure = ps.plots.cluster(torus, "64 TPU v4, 4 x 4 x 4")

hops = {len(torus.route(torus.devices[0], d)) for d in torus.devices[1:]}
ends = sum(link.a == torus.devices[0] and link.kind == "ici" for link in torus.links)
beside(
    ("512 H100: servers of eight", 64, len(set(ps.load_cluster("h100-hgx-ib400", 512).node_of.values()))),
    ("NVL72: GPUs in one domain", 72, len(rack.devices)),
    ("torus: cables of a chip", 6, ends),
    ("torus: hops to the farthest chip", 6, max(hops)),
)
