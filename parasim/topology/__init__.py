"""Clusters: devices and links as a graph, built from a few numbers, loaded from files, routed deterministically."""
