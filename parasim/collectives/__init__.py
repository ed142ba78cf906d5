"""Collectives and messages on a cluster: phases of latency and of bytes on links; one file per algorithm and a table to pick from."""
