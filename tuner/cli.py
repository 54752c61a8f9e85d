"""The `tune` commands: parse, call one function, end with its exit code. Loads nothing heavy for `--help`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from tuner.console import end_with, set_up_logging
from tuner.usage_errors import StrictGroup

app = typer.Typer(
    name="tune",
    cls=StrictGroup,
    help="Finds where to recompute activations: the fastest training placement under a memory cap.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

SearchFile = Annotated[Path, typer.Argument(metavar="SEARCH.YAML", help="What to tune; see `tune schema`.")]
StudyName = Annotated[str, typer.Argument(metavar="STUDY", help="A study's name or its folder.")]
OutputDir = Annotated[Path, typer.Option("--output-dir", help="Folder of all studies.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


TrackedAt = Annotated[
    Optional[str],  # noqa: UP045  # typer reads it on 3.10
    typer.Option("--uri", help="MLflow store that has the study, where it ran on another machine."),
]


@app.callback()
def common(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more on standard error.")] = False,
) -> None:
    """Finds where to recompute activations: the fastest training placement under a memory cap."""
    set_up_logging(verbose=verbose)


@app.command()
def run(
    search_file: SearchFile,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a study that was stopped.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run the whole search: a live table, then the front and the best policy."""
    from tuner.commands.run import run_command

    end_with(lambda: run_command(search_file, resume=resume, as_json=as_json))


@app.command()
def check(search_file: SearchFile, as_json: AsJson = False) -> None:
    """Search nothing: build the model, list its blocks, measure one plain step, say whether recompute can help."""
    from tuner.commands.check import check_command

    end_with(lambda: check_command(search_file, as_json=as_json))


@app.command()
def plan(
    search_file: SearchFile,
    study: Annotated[
        Optional[str],  # noqa: UP045  # typer reads it on 3.10
        typer.Option("--study", help="An earlier study of the same model, by name or folder: predict seconds."),
    ] = None,
    device_memory: Annotated[
        Optional[str],  # noqa: UP045  # as above
        typer.Option("--device-memory", help="Of the device that is planned for, for example 80GiB."),
    ] = None,
    shard: Annotated[
        int, typer.Option("--shard", min=1, help="Ranks that share parameters, gradients and optimizer states.")
    ] = 1,
    output_dir: OutputDir = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Predict the front without running a step and without the device."""
    from tuner.commands.plan import PlanOptions, plan_command

    options = PlanOptions(study=study, device_memory=device_memory, num_shards=shard, output_dir=output_dir)
    end_with(lambda: plan_command(search_file, options, as_json=as_json))


@app.command()
def verify(
    search_file: SearchFile,
    policy: Annotated[Path, typer.Option("--policy", help="The policy.yaml to measure and prove.")],
    as_json: AsJson = False,
) -> None:
    """Measure one policy and prove that it trains the same model."""
    from tuner.commands.verify import verify_command

    end_with(lambda: verify_command(search_file, policy, as_json=as_json))


@app.command()
def timeline(
    search_file: SearchFile,
    policy: Annotated[
        Optional[str],  # noqa: UP045  # typer reads it on 3.10
        typer.Option("--policy", help="A policy.yaml, or a study that has one; default is plain training."),
    ] = None,
    micro_batch_size: Annotated[
        Optional[int],  # noqa: UP045  # as above
        typer.Option("--micro-batch-size", min=1, help="Default is the policy's, or the largest that runs."),
    ] = None,
    blocks: Annotated[
        str, typer.Option("--blocks", help="First blocks of each list to show; 0 or all shows all.")
    ] = "3",
    output: Annotated[
        Optional[Path],  # noqa: UP045  # as above
        typer.Option("--output", "-o", help="Folder for timeline.html and timeline.json; default is the study's."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw one step: each tensor kept for backward, from birth to last use, below the memory in use."""
    from tuner.commands.timeline import TimelineOptions, timeline_command

    options = TimelineOptions(policy=policy, micro_batch_size=micro_batch_size, blocks=blocks, output=output)
    end_with(lambda: timeline_command(search_file, options, as_json=as_json))


@app.command()
def show(
    study: StudyName,
    output_dir: OutputDir = Path("runs"),
    uri: TrackedAt = None,
    all_trials: Annotated[bool, typer.Option("--all", help="Every trial, not only the front.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the front of a study as a table."""
    from tuner.commands.show import show_command

    end_with(lambda: show_command(study, output_dir=output_dir, uri=uri, all_trials=all_trials, as_json=as_json))


@app.command()
def export(
    study: StudyName,
    export_format: Annotated[
        str, typer.Option("--format", help="The training stack to write for; see docs/exporters.md.")
    ],
    output_dir: OutputDir = Path("runs"),
    trial: Annotated[Optional[int], typer.Option("--trial", help="A trial by number; default is the best.")] = None,  # noqa: UP045  # typer reads it on 3.10
    memory_cap: Annotated[
        Optional[str], typer.Option("--memory-cap", help="The fastest trial within this, for example 40GiB.")  # noqa: UP045  # as above
    ] = None,
    stack_version: Annotated[
        Optional[str],  # noqa: UP045  # as above
        typer.Option("--stack-version", help="Release of the stack to write for; default is the newest."),
    ] = None,
    through_python: Annotated[
        bool, typer.Option("--python", help="Training code will use tuner.integrations for what a config cannot say.")
    ] = False,
    output: Annotated[
        Optional[Path], typer.Option("--output", "-o", help="File to write; default is standard output.")  # noqa: UP045  # as above
    ] = None,
    into: Annotated[
        Optional[Path],  # noqa: UP045  # as above
        typer.Option("--into", metavar="FILE", help="Your own YAML, TOML, JSON or launch script to set the keys in."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --into: show the change, write nothing.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Ask the installed stack what it recomputes under the export.")
    ] = False,
    uri: TrackedAt = None,
    as_json: AsJson = False,
) -> None:
    """Write a measured policy as a training config, or set its keys in a config that you have."""
    from tuner.commands.export import ExportOptions, export_command

    options = ExportOptions(
        trial=trial,
        memory_cap=memory_cap,
        output=output,
        stack_version=stack_version,
        through_python=through_python,
        into=into,
        dry_run=dry_run,
        check=check,
        uri=uri,
    )
    end_with(lambda: export_command(study, export_format, options, output_dir=output_dir, as_json=as_json))


@app.command()
def compare(
    study_a: Annotated[str, typer.Argument(metavar="STUDY", help="A study's name or its folder: A.")],
    study_b: Annotated[str, typer.Argument(metavar="STUDY", help="Another one of the same global batch: B.")],
    output_dir: OutputDir = Path("runs"),
    uri: TrackedAt = None,
    as_json: AsJson = False,
) -> None:
    """Lay two studies of one global batch side by side, and say why their winners differ."""
    from tuner.commands.compare import compare_command

    end_with(lambda: compare_command(study_a, study_b, output_dir=output_dir, uri=uri, as_json=as_json))


Address = Annotated[
    str, typer.Option("--address", metavar="URL", help="The cluster's job server, such as http://head.example:8265.")
]


@app.command()
def submit(
    search_file: SearchFile,
    address: Address,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a study whose driver has ended.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run the search as a job on a cluster, and return at once."""
    from tuner.commands.submit import submit_command

    end_with(lambda: submit_command(search_file, address=address, resume=resume, as_json=as_json))


@app.command("list")
def list_studies(address: Address, as_json: AsJson = False) -> None:
    """List the studies that were submitted to a cluster."""
    from tuner.commands.jobs import list_command

    end_with(lambda: list_command(address=address, as_json=as_json))


@app.command()
def status(study: StudyName, address: Address, as_json: AsJson = False) -> None:
    """Say how a submitted study stands."""
    from tuner.commands.jobs import status_command

    end_with(lambda: status_command(study, address=address, as_json=as_json))


@app.command()
def logs(
    study: StudyName,
    address: Address,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the driver ends.")] = False,
) -> None:
    """Print what the driver of a submitted study prints."""
    from tuner.commands.jobs import logs_command

    end_with(lambda: logs_command(study, address=address, follow=follow))


@app.command()
def stop(study: StudyName, address: Address) -> None:
    """Stop a submitted study; what was measured is kept."""
    from tuner.commands.jobs import stop_command

    end_with(lambda: stop_command(study, address=address))


@app.command()
def ui(
    output_dir: OutputDir = Path("runs"),
    uri: Annotated[Optional[str], typer.Option("--uri", help="Another tracking store than the default.")] = None,  # noqa: UP045  # as above
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port to listen on.", min=1, max=65535)] = 5000,
) -> None:
    """Open MLflow's own server on the tracking store."""
    from tuner.commands.ui import ui_command

    end_with(lambda: ui_command(output_dir=output_dir, uri=uri, host=host, port=port))


@app.command()
def schema() -> None:
    """Print the JSON schema of search.yaml, for editors."""
    from tuner.commands.schema import schema_command

    end_with(schema_command)


def main() -> None:
    """Entry point of `tune` and of `python -m tuner`."""
    app()
