"""The command line of `parasim calibrate`: flags to jobs, as in `cli`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Measure this machine and write a profile.")

Out = Annotated[Path, typer.Option(help="The profile to write.")]
AcceleratorName = Annotated[str | None, typer.Option(help="Whose datasheet the device has; without one, the peaks of a processor are measured too.")]
Seconds = Annotated[float, typer.Option(help="Time to measure for; a second run goes on with the samples beside --out.")]
ClusterName = Annotated[str, typer.Option(help="Where it ran: catalog name or file.")]
SetOfSizes = Annotated[str | None, typer.Option(help="tiny, small or large; default: small on a processor, large on a GPU.")]
DtypeName = Annotated[str | None, typer.Option(help="bf16, fp16 or fp32; default: fp32 on a processor, bf16 on a GPU.")]


def _tell(text: str) -> None:
    typer.echo(text, err=True)


def _from_files(form: str, paths: list[Path], cluster: str, out: Path) -> None:
    from .calibrating import calibrate_files

    typer.echo(calibrate_files(form, paths, cluster, out))


@app.command("kernels")
def calibrate_kernels(out: Out, accelerator: AcceleratorName = None, seconds: Seconds = 60.0, sizes: SetOfSizes = None, dtype: DtypeName = None) -> None:
    """Time matrix products, attention, kernels bound by memory, an optimizer step and launches on this device."""
    from .calibrating import calibrate_kernels as job

    typer.echo(job(out, accelerator, limit=seconds, tell=_tell, sizes=sizes, dtype=dtype))


@app.command("step")
def calibrate_step(out: Out, accelerator: AcceleratorName = None, seconds: Seconds = 60.0, sizes: SetOfSizes = None, dtype: DtypeName = None) -> None:
    """Time training steps of a small transformer on this device, with and without recomputation; on a GPU also peak memory."""
    from .calibrating import calibrate_step as job

    typer.echo(job(out, accelerator, limit=seconds, tell=_tell, sizes=sizes, dtype=dtype))


@app.command("collectives")
def calibrate_collectives(
    out: Out,
    ranks: Annotated[int | None, typer.Option(min=2, help="Spawn this many local gloo ranks (else: under torchrun).")] = None,
    nbytes: Annotated[str, typer.Option("--bytes", metavar="MIN:MAX:FACTOR", help="Sizes of the sweep.")] = "256K:8M:4",
) -> None:
    """Sweep collectives and messages on gloo, fit latency and bandwidth per op; a second run goes on with the samples beside --out."""
    from .calibrating import calibrate

    typer.echo(calibrate(out, ranks=ranks, sizes=nbytes, tell=_tell))


@app.command("nccl-tests")
def calibrate_nccl_tests(
    logs: Annotated[list[Path], typer.Argument(metavar="LOG...", help="Logs or JSON reports of nccl-tests.")],
    cluster: ClusterName,
    out: Out,
) -> None:
    """Fit latency and bandwidth per op to nccl-tests."""
    _from_files("nccl-tests", logs, cluster, out)


@app.command("kineto")
def calibrate_kineto(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Traces of torch.profiler, one per rank.")],
    cluster: ClusterName,
    out: Out,
) -> None:
    """Fit rates of kernels (traces with record_shapes=True), latency and bandwidth of collectives to a traced job."""
    _from_files("kineto", traces, cluster, out)


@app.command("chakra")
def calibrate_chakra(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Chakra execution traces, one per rank: NAME.<rank>.et.")],
    cluster: ClusterName,
    out: Out,
) -> None:
    """List bytes and groups of collectives; fit rates of kernels, latency and bandwidth of collectives to a traced job."""
    _from_files("chakra", traces, cluster, out)
