"""Commands about the facts behind a step, without its clock: what collectives do to values, what a layout holds, moves and computes."""

from __future__ import annotations

from typing import Annotated

import typer

from .cli_common import AsJson, Overrides, RunFile, print_answer


def values(
    op: Annotated[str, typer.Option(help="all_reduce, all_gather, ...; several with commas between them run one after the other.")],
    inputs: Annotated[str, typer.Option(metavar="[[0,1],[2,3]]", help="JSON: a list per rank; for broadcast and scatter the root's list will do.")],
    ranks: Annotated[int | None, typer.Option(min=2, help="Ranks; default: as many as there are lists.")] = None,
    reduce: Annotated[str, typer.Option(help="sum, avg, max or min.")] = "sum",
    root: Annotated[int, typer.Option(min=0, help="Root of broadcast, scatter, gather and reduce.")] = 0,
    splits: Annotated[str | None, typer.Option(metavar="[[1,2],[0,1]]", help="Elements that each rank sends to each (all_to_all).")] = None,
    backend: Annotated[str, typer.Option(help="reference (the definition), or gloo (real processes).")] = "reference",
    json: AsJson = False,
) -> None:
    """What a collective does to a few numbers on every rank."""
    from .plan.values import collective_values

    print_answer(collective_values(op, inputs, ranks=ranks, reduce=reduce, root=root, splits=splits, backend=backend), json)


def account(
    file: RunFile = None,
    overrides: Overrides = None,
    rank: Annotated[int, typer.Option(min=0, help="Whose account.")] = 0,
    versus: Annotated[str | None, typer.Option(metavar="K=V,K=V", help="Also every number over that of the run so changed.")] = None,
    spread: Annotated[float | None, typer.Option(metavar="SHARE", help="Replicas needed if they share out this part of the activations too.")] = None,
    tokens: Annotated[str | None, typer.Option(metavar="4M", help="Tokens of a step: how many whole sequences they are.")] = None,
    until_fits: Annotated[str | None, typer.Option(metavar="K=A..B:2x", help="The first value with which the state fits.")] = None,
    json: AsJson = False,
) -> None:
    """What a rank holds, moves and computes, by layer and step, without a clock: state, activations, wire bytes, FLOPs at peak."""
    from .api import load
    from .plan.account import account as counted

    print_answer(counted(load(file, overrides or ()), rank, versus, spread, tokens, until_fits), json)


def cluster(
    name: Annotated[str, typer.Argument(metavar="CLUSTER", help="Catalog name or file.")],
    devices: Annotated[int, typer.Option(min=1, help="Devices that are wanted where its count is auto.")] = 512,
    source: Annotated[int, typer.Option("--from", min=0, help="A device: where the route begins.")] = 0,
    target: Annotated[int | None, typer.Option("--to", min=0, help="And where it ends; default: the last device.")] = None,
    versus: Annotated[str | None, typer.Option(metavar="CLUSTER", help="Also every number over that of another cluster, and its rungs in the ladder.")] = None,
    json: AsJson = False,
) -> None:
    """Facts of a cluster: the ladder of bandwidths around a device, servers and pods, the way between two devices."""
    from .plan.cluster_facts import cluster_facts

    print_answer(cluster_facts(name, devices, source, target, versus), json)


def roofline(
    peak: Annotated[str, typer.Option(metavar="460TFLOP/s", help="FLOP/s of one device.")],
    bandwidth: Annotated[str, typer.Option(metavar="180GB/s", help="Of one network axis, both directions together.")],
    ffn: Annotated[int, typer.Option(min=1, help="Inner width of the layer.")],
    fsdp: Annotated[str, typer.Option(metavar="WAYSxAXES", help="Ways of FSDP, and the network axes it uses at once.")],
    tensor: Annotated[str, typer.Option(metavar="WAYSxAXES", help="The same of tensor parallelism; 1x1: none.")] = "1x1",
    json: AsJson = False,
) -> None:
    """From how many tokens per device a layer is bound by compute under FSDP and tensor parallelism: closed forms for many devices."""
    from .plan.roofline import roofline as bound

    print_answer(bound(peak, bandwidth, ffn, fsdp, tensor), json)


COMMANDS = (values, account, cluster, roofline)
