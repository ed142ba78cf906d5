"""Ops, kernels, Programs and Workloads: the text that both back ends run."""
