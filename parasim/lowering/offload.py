"""The offload pass: optimizer state, and parameters, that live in the memory of the host.

As ZeRO-Offload has it (Ren et al. 2021, arXiv 2101.06840): a gradient is copied to the host when it is final, Adam runs there on the state that
is kept there, and the updated parameters are copied back, each on a stream of its own, so that buckets overlap. Parameters that live on the host
are fetched layer by layer, in the forward and again in the backward, at most LAYERS of them on the device at once (ZeRO-Infinity, Rajbhandari
et al. 2021, arXiv 2104.07857, section 5; without sharing them out).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from ..program.ops import Compute, Kernel, Label, Op, Ref, replace
from .draft import Draft

OUT, IN, HOST = "copy.out", "copy.in", "host"  # to the host, from it, and its own work: both directions of the link are used at once
WINDOW, LAYERS = "offload", 2


def offload(draft: Draft) -> None:
    """Move optimizer steps, and the home of parameters, to the host."""
    what = draft.layout.offload
    if what.parameters:
        names = set(draft.parameters)
        for name in names:
            draft.buffers[name] = replace(draft.buffers[name], category="host")
        draft.windows[WINDOW] = LAYERS
        for key, body in draft.bodies.items():
            draft.bodies[key] = list(_fetched(draft, body, names))
    if what.optimizer:
        for key, body in draft.bodies.items():
            draft.bodies[key] = [new for op in body for new in _on_host(draft, op)]


def _fetched(draft: Draft, body: list[Op], names: set[str]) -> Iterator[Op]:
    """Before the ops of a layer, a copy of all parameters that they read; the steps of the optimizer read them where they are."""
    for layer, run in groupby(body, key=lambda o: (o.label.phase == "S", o.label.layer)):
        ops = list(run)
        wanted = {} if layer[0] else {r: Ref(f"{r.name}.fetched") for o in ops if isinstance(o, Compute) for r in o.reads if r.name in names}
        if wanted:
            for source, copy in wanted.items():
                draft.buffers.setdefault(copy.name, replace(draft.buffers[source.name], name=copy.name, category="gathered", persistent=False))
            kernels = tuple(_copy(draft, "copy_from_host", source, copy) for source, copy in wanted.items())
            yield Compute(label=ops[0].label._replace(axis=""), stream=IN, window=WINDOW, kernels=kernels)
        for op in ops:
            yield replace(op, kernels=tuple(_reading(k, wanted) for k in op.kernels)) if isinstance(op, Compute) and wanted else op


def _reading(kernel: Kernel, names: dict[Ref, Ref]) -> Kernel:
    return replace(kernel, reads=tuple(names.get(r, r) for r in kernel.reads))


def _copy(draft: Draft, name: str, source: Ref, target: Ref) -> Kernel:
    return Kernel(name, (source,), (target,), (), draft.buffers[source.name].dtype)


def _on_host(draft: Draft, op: Op) -> Iterator[Op]:
    """Adam with its state on the host: gradient out, step, parameters in. The slice that state on the device starts from is not needed."""
    kernel = op.kernels[0] if isinstance(op, Compute) else None
    if kernel is None or kernel.name not in ("adam", "flat_slice"):
        yield op
        return
    if kernel.name == "flat_slice":
        return
    p, g, m, v = kernel.reads
    target = kernel.writes[3] if len(kernel.writes) > 3 else p
    home = _state(draft, p)
    for ref in (m, v):
        draft.buffers[ref.name] = replace(draft.buffers[ref.name], category="host")
    there = draft.buffers[target.name].category == "host"
    gradient = _host_buffer(draft, g, "host")
    rounded = () if target == p else (target,) if there else (_host_buffer(draft, target, "staged"),)
    yield _op(op.label, OUT, _copy(draft, "copy_to_host", g, gradient))
    yield _op(op.label, HOST, replace(kernel, name="host_adam", reads=(home, gradient, m, v), writes=(home, m, v, *rounded)))
    if not there:
        yield _op(op.label, IN, _copy(draft, "copy_from_host", rounded[0] if rounded else home, target))


def _state(draft: Draft, p: Ref) -> Ref:
    """Where Adam steps: the master copy, moved to the host, or a copy there of the parameters that it would step in place."""
    buffer = draft.buffers[p.name]
    if buffer.category in ("optimizer", "host"):
        draft.buffers[p.name] = replace(buffer, category="host")
        return p
    name = f"{p.name}.host"
    draft.buffers[name] = replace(buffer, name=name, category="host", persistent=True, of=buffer.of or (p.name,))
    return Ref(name)


def _host_buffer(draft: Draft, ref: Ref, suffix: str) -> Ref:
    """A buffer of the step on the host, like `ref`."""
    name = f"{ref.name}.{suffix}"
    draft.buffers[name] = replace(draft.buffers[ref.name], name=name, category="host", persistent=False)
    return Ref(name, ref.slot)


def _op(label: Label, stream: str, kernel: Kernel) -> Compute:
    return Compute(label=label, stream=stream, kernels=(kernel,))
