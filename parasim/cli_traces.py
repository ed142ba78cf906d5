"""Commands that exchange files with other tools: export, import, compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from .cli_common import AsJson, Overrides, print_answer


def export(
    form: Annotated[
        str,
        typer.Argument(help="perfetto (ui.perfetto.dev), chrome (JSON of chrome://tracing), csv, memory-snapshot (pytorch.org/memory_viz); chakra of a run."),
    ],
    source: Annotated[Path, typer.Argument(metavar="TIMELINE.npz|RUN.yaml", help="A saved timeline; for chakra a run file.")],
    out: Annotated[Path, typer.Option(help="The file to write; of chakra OUT.<rank>.et and OUT.groups.json.")],
    rank: Annotated[int | None, typer.Option(min=0, help="Whose memory; of chakra the only rank to write.")] = None,
    overrides: Overrides = None,
) -> None:
    """Write a saved timeline, or the kernels and transfers of a run, for another tool."""
    from .tracing import export_file

    typer.echo(export_file(form, source, out, rank, overrides or ()))


def import_file(
    file: Annotated[
        Path, typer.Argument(help="Output of nvidia-smi topo -m, NCCL's topology XML, Slurm's topology.conf, arguments of Megatron-LM, a torchtitan config.")
    ],
    kind: Annotated[str, typer.Option(help="nvidia-smi, nccl-xml, slurm (auto goes by the content); megatron, torchtitan: a run file.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="The file to write; default cluster.yaml or run.yaml.")] = None,
    accelerator: Annotated[str | None, typer.Option(help="Of a matrix or XML, where it shall not be guessed.")] = None,
    server: Annotated[str, typer.Option(help="Slurm: the cluster of the catalog whose servers the nodes are.")] = "h100-hgx-ib400",
    devices_per_node: Annotated[int | None, typer.Option(min=1, help="Slurm: devices of a node; default: those of the server.")] = None,
    oversubscription: Annotated[float, typer.Option(help="Slurm: of every switch.")] = 1.0,
    cluster: Annotated[str, typer.Option(help="Megatron, torchtitan: the cluster of the run.")] = "h100-hgx-ib400",
    devices: Annotated[int | None, typer.Option(min=1, help="Megatron, torchtitan: devices of the run; default: what the launcher or the degrees say.")] = None,
) -> None:
    """Write a cluster file from a description of real machines, or a run file from the arguments of a training."""
    from .jobs import RUN_FORMS, import_run, import_topology

    if kind in RUN_FORMS:
        typer.echo(import_run(file, kind, cluster, devices, out or Path("run.yaml")))
        return
    more = {"server": server, "devices_per_node": devices_per_node, "oversubscription": oversubscription}
    typer.echo(import_topology(file, kind, out or Path("cluster.yaml"), accelerator=accelerator, **more))


def compare(
    predicted: Annotated[Path, typer.Argument(help="A timeline; beside a trace the run file.")],
    measured: Annotated[Path, typer.Argument(help="A timeline of the same program, or a trace of torch.profiler (.json, .json.gz).")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Beside a trace: also draw both into this PNG, SVG or PDF.")] = None,
    json: AsJson = False,
) -> None:
    """Signed errors of the step: of two timelines op by op, of a run and a trace of torch.profiler by kind of kernel."""
    from .tracing import compare_files

    print_answer(compare_files(predicted, measured, overrides or (), out), json)


COMMANDS: Mapping[str, Callable[..., None]] = {"export": export, "import": import_file, "compare": compare}
