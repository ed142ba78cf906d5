"""The lab: a cluster file laid out as a real network on one Linux host, its runs executed there with slept compute, and the simulator judged.

`networks` turns a cluster into hosts, switches and cables; `shaping` writes the commands of `ip` and `tc` for them; `namespaces` applies
these; `wrapper` makes sure that all of it ends with the command; `cases` reads the list of cases; `ranks` runs one on gloo; `fitting` finds
start-up times; `judging` compares and holds the gate; `command` is the command line.
"""
