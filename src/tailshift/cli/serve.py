"""Command `serve`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from tailshift.cli.app import Plugins, announce, app, print_note
from tailshift.cli.options import HeldOut


@app.command(
    epilog="Example: tailshift serve runs/digits_lt/lade-seed0 --state sites.sqlite"
)
def serve(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|MODEL", help="A run directory, or a file of `export`."
        ),
    ],
    book: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Priors of known sites (SitePriors)."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port; 0: a free one.")
    ] = 8000,
    token: Annotated[
        str,
        typer.Option(
            envvar="TAILSHIFT_TOKEN", help="Token that every request must bear."
        ),
    ] = "",
    state: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="SQLite file that keeps the sites."),
    ] = None,
    held_out: HeldOut = None,
    adapt: Annotated[
        Literal["auto", "approve", "never"],
        typer.Option(help="Adaptation policy of a new site."),
    ] = "approve",
    plugin: Plugins = None,
) -> None:
    """Serve predictions over HTTP, with one prior per site."""
    from tailshift.serving import inference

    for package in (
        "fastapi",
        "uvicorn",
        "python_multipart",
        "prometheus_client",
        "onnxruntime",
    ):
        inference.needed(package)
    from tailshift.serving import server

    service = server.open_service(
        source, held_out=held_out, book=book, state=state, adapt=adapt
    )
    if service.reason:
        print_note(service.reason)
    if state is None:
        print_note("the sites are kept in memory and lost at the end (--state).")
    server.serve(service, host=host, port=port, token=token, announce=announce)
