"""Every algorithm of every op by name: how it is priced (`ALGORITHMS`) and its messages (`MESSAGES`). One file per algorithm, one entry here."""

from __future__ import annotations

from collections.abc import Mapping

from . import binomial, bruck, chain, direct, doubling, halving, hierarchical, in_network, pairwise, rail, ring, torus, torus_messages, tree
from .group import Algorithm
from .messages import Plotter

ALGORITHMS: Mapping[str, Mapping[str, Algorithm]] = {
    "all_reduce": {
        "ring": ring.all_reduce,
        "direct": direct.all_reduce,
        "two-shot": direct.all_reduce,
        "one-shot": direct.one_shot,
        "tree": tree.all_reduce,
        "chain-tree": tree.chain,
        "halving-doubling": halving.all_reduce,
        "recursive-doubling": doubling.all_reduce,
        "hierarchical": hierarchical.all_reduce,
        "hierarchical-pipelined": hierarchical.pipelined,
        "hierarchical-tree": hierarchical.tree_between,
        "nvls": in_network.all_reduce,
        "nvls-ring": hierarchical.nvls_ring,
        "nvls-tree": hierarchical.nvls_tree,
        "nvls-sharp": hierarchical.nvls_sharp,
        "sharp": in_network.sharp,
        "torus": torus.all_reduce,
    },
    "all_gather": {
        "ring": ring.all_gather,
        "direct": direct.all_gather,
        "recursive-doubling": halving.all_gather,
        "bruck": bruck.all_gather,
        "hierarchical": hierarchical.all_gather,
        "nvls": in_network.all_gather,
        "torus": torus.all_gather,
    },
    "reduce_scatter": {
        "ring": ring.reduce_scatter,
        "direct": direct.reduce_scatter,
        "recursive-halving": halving.reduce_scatter,
        "hierarchical": hierarchical.reduce_scatter,
        "nvls": in_network.reduce_scatter,
        "torus": torus.reduce_scatter,
        "ring-all-reduce": ring.all_reduce,
    },
    "all_to_all": {
        "direct": direct.all_to_all,
        "pairwise": pairwise.all_to_all,
        "bruck": bruck.all_to_all,
        "rail": rail.all_to_all,
        "torus": torus.all_to_all,
    },
    "broadcast": {
        "ring": ring.broadcast,
        "chain": chain.broadcast,
        "direct": direct.broadcast,
        "binomial": binomial.broadcast,
        "tree": tree.broadcast,
        "torus": torus.broadcast,
    },
    "reduce": {
        "ring": ring.reduce,
        "direct": direct.reduce,
        "binomial": binomial.reduce,
        "tree": tree.reduce,
        "ring-gather": ring.reduce_gather,
    },
    "scatter": {"direct": direct.scatter, "binomial": binomial.scatter, "torus": torus.scatter},
    "gather": {"direct": direct.gather, "binomial": binomial.gather, "torus": torus.gather},
    "barrier": {"direct": direct.barrier, "dissemination": doubling.barrier},
}

MESSAGES: Mapping[str, Mapping[str, Plotter]] = {
    "all_reduce": {
        "ring": ring.all_reduce_messages,
        "direct": direct.all_reduce_messages,
        "two-shot": direct.all_reduce_messages,
        "one-shot": direct.one_shot_messages,
        "tree": tree.all_reduce_messages,
        "chain-tree": tree.chain_messages,
        "halving-doubling": halving.all_reduce_messages,
        "recursive-doubling": doubling.all_reduce_messages,
        "hierarchical": hierarchical.all_reduce_messages,
        "hierarchical-pipelined": hierarchical.all_reduce_messages,
        "hierarchical-tree": hierarchical.tree_between_messages,
        "nvls": in_network.all_reduce_messages,
        "nvls-ring": hierarchical.nvls_ring_messages,
        "nvls-tree": hierarchical.nvls_tree_messages,
        "nvls-sharp": hierarchical.nvls_sharp_messages,
        "sharp": in_network.sharp_messages,
        "torus": torus_messages.all_reduce,
    },
    "all_gather": {
        "ring": ring.all_gather_messages,
        "direct": direct.all_gather_messages,
        "recursive-doubling": halving.all_gather_messages,
        "bruck": bruck.all_gather_messages,
        "hierarchical": hierarchical.all_gather_messages,
        "nvls": in_network.all_gather_messages,
        "torus": torus_messages.all_gather,
    },
    "reduce_scatter": {
        "ring": ring.reduce_scatter_messages,
        "direct": direct.reduce_scatter_messages,
        "recursive-halving": halving.reduce_scatter_messages,
        "hierarchical": hierarchical.reduce_scatter_messages,
        "nvls": in_network.reduce_scatter_messages,
        "torus": torus_messages.reduce_scatter,
        "ring-all-reduce": ring.all_reduce_messages,
    },
    "all_to_all": {
        "direct": direct.all_to_all_messages,
        "pairwise": pairwise.all_to_all_messages,
        "bruck": bruck.all_to_all_messages,
        "rail": rail.all_to_all_messages,
        "torus": torus_messages.all_to_all,
    },
    "broadcast": {
        "ring": ring.broadcast_messages,
        "chain": chain.broadcast_messages,
        "direct": direct.broadcast_messages,
        "binomial": binomial.broadcast_messages,
        "tree": tree.broadcast_messages,
        "torus": torus_messages.broadcast,
    },
    "reduce": {
        "ring": ring.reduce_messages,
        "direct": direct.reduce_messages,
        "binomial": binomial.reduce_messages,
        "tree": tree.reduce_messages,
        "ring-gather": ring.reduce_gather_messages,
    },
    "scatter": {"direct": direct.scatter_messages, "binomial": binomial.scatter_messages, "torus": torus_messages.scatter},
    "gather": {"direct": direct.gather_messages, "binomial": binomial.gather_messages, "torus": torus_messages.gather},
    "barrier": {"direct": direct.barrier_messages, "dissemination": doubling.barrier_messages},
}
