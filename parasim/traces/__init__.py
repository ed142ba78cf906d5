"""Traces of other tools: Chakra, Chrome and CSV out, Chakra and torch.profiler (Kineto) in, and a traced step beside a predicted one."""
