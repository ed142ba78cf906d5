"""Random small Programs for hypothesis: few buffers, streams, slots, fences and windows, persistent and not."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from parasim.program.ops import P2P, Buffer, Collective, Compute, Kernel, Label, Msg, Op, Ref
from parasim.program.workload import Call, Program

STREAMS = ("compute", "a", "b")
NAMES = ("u", "v", "w", "x", "y")
MICROBATCHES = (0, 1, 2)


@st.composite
def programs(draw: Any, written_first: bool) -> Program:
    """Two microbatches per call. With `written_first` an opening call writes everything, so that every read is of something."""
    buffers = {}
    for name in NAMES[: draw(st.integers(2, 5))]:
        category = draw(st.sampled_from(("activations", "parameters", "buffers", "host")))
        buffers[name] = Buffer(name, (draw(st.integers(0, 3)), 2), "bf16", category, persistent=draw(st.booleans()))
    buffers["t"] = Buffer("t", (1, 2), "bf16", "activations")  # never leaves a call, nor the compute stream
    bodies = {f"B{i}": draw(_body(buffers)) for i in range(draw(st.integers(1, 3)))}
    pairs = st.lists(st.sampled_from(MICROBATCHES), min_size=2, max_size=2, unique=True).map(tuple)
    calls = draw(st.lists(st.tuples(st.sampled_from(sorted(bodies)), pairs), min_size=1, max_size=6))
    opening = []
    if written_first:
        bodies["all"] = tuple(_kernel((), (Ref(n, s),), "compute") for n in buffers if n != "t" for s in (-1, 0, 1))
        opening = [Call("all", (0, 1)), Call("all", (2, 0))]
    return Program(buffers, bodies, (*opening, *(Call(b, m) for b, m in calls)), {"win": draw(st.integers(1, 3))})


def _kernel(reads: tuple[Ref, ...], writes: tuple[Ref, ...], stream: str, **more: Any) -> Compute:
    return Compute(label=Label("F", 0, 0), stream=stream, kernels=(Kernel("delay", reads, writes, (1.0,), "bf16"),), **more)


@st.composite
def _body(draw: Any, buffers: dict[str, Buffer]) -> tuple[Op, ...]:
    refs = [Ref(n, s) for n, b in buffers.items() if n != "t" for s in ((-1,) if b.persistent else (-1, 0, 1))]
    ops: list[Op] = []
    made: list[Ref] = []
    for _ in range(draw(st.integers(1, 4))):
        some = st.lists(st.sampled_from([*refs, *[r for r in made * 2 if r.name != "t"]]), max_size=2, unique=True).map(tuple)
        stream, after = draw(st.sampled_from(STREAMS)), draw(st.lists(st.sampled_from(STREAMS), max_size=1).map(tuple))
        common: dict[str, Any] = {"label": Label("F", 0, 0), "stream": stream, "after": after, "window": draw(st.sampled_from(("", "", "", "win")))}
        match draw(st.sampled_from(("compute", "two", "collective", "p2p"))):
            case "compute" | "two" as kind:
                inner = st.lists(st.sampled_from((Ref("t", 0), Ref("t", 1))), max_size=1 if stream == "compute" else 0).map(tuple)
                kernels = ()
                for _ in range(1 if kind == "compute" else 2):
                    read = tuple(r for r in draw(inner) if r in made)
                    kernels += (Kernel("delay", draw(some) + read, draw(some) + draw(inner), (1.0,), "bf16"),)
                ops.append(Compute(kernels=kernels, **common))
            case "collective":
                ops.append(Collective(op="all_reduce", group="dp", reads=draw(some), writes=draw(some), **common))
            case "p2p":
                sends, recvs = (tuple(Msg(r, "pp+1", "c") for r in draw(some)) for _ in range(2))
                ops.append(P2P(sends=sends, recvs=recvs, **common))
        made += ops[-1].writes
    return tuple(ops)
