"""The server: a service opened from a run or a file, and served until it is stopped."""

import logging
import os
import socket
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import uvicorn
from fastapi import FastAPI

from tailshift.estimators import SitePriors
from tailshift.predictions import Predictions
from tailshift.runs.run import Run, load_run
from tailshift.serving.connections import (
    SHUTDOWN_SECONDS,
    LogRateLimit,
    limited_protocol,
    max_connections,
)
from tailshift.serving.estimation import held_out_logits
from tailshift.serving.export import export_onnx
from tailshift.serving.guard import LOOPBACK
from tailshift.serving.images import PathLike
from tailshift.serving.inference import OnnxModel
from tailshift.serving.messages import Limits
from tailshift.serving.routes import build_app
from tailshift.serving.service import Service
from tailshift.serving.site import Adapt, Vector
from tailshift.serving.sites import Sites

__all__ = ["Limits", "build_app", "open_service", "serve", "server_config"]


def open_service(
    source: Run | PathLike,
    *,
    held_out: Predictions | PathLike | None = None,
    book: SitePriors | PathLike | None = None,
    state: Path | None = None,
    adapt: Adapt = "approve",
    half_life: float = 1000.0,
    limits: Limits | None = None,
    threads: int = 0,
) -> Service:
    """Return a model that is ready to serve.

    Args:
        source: A finished run or its directory, or a file of ``tailshift export``.
        held_out: Labelled logits to calibrate on, or their file; by default the run's
            validation logits. Without any, no mix is estimated.
        book: Mixes of sites that are known beforehand, or their file.
        state: SQLite file that keeps the sites; None keeps them in memory.
        adapt: Adaptation policy of a new site.
        half_life: Number of images after which one counts half in an estimate.
        limits: What requests may take.
        threads: Threads of ONNX Runtime; 0 is one for each core.
    """
    if isinstance(source, str | os.PathLike) and Path(source).is_dir():
        source = load_run(source)
    model = _as_model(source, threads)
    known, reason = _held_out(source, held_out, len(model.class_names))
    limits = Limits() if limits is None else limits
    sites = Sites(
        state,
        class_names=model.class_names,
        source_prior=model.source_prior,
        probe=model.probe(),
        held_out=known,
        book=_mixes(book, model.class_names),
        adapt=adapt,
        half_life=half_life,
        most_sites=limits.sites,
    )
    return Service(model, sites, limits=limits, reason=reason)


def _mixes(
    book: SitePriors | PathLike | None, class_names: tuple[str, ...]
) -> dict[str, Vector]:
    """Return the mix of each site of a book."""
    if book is None:
        return {}
    book = book if isinstance(book, SitePriors) else SitePriors.load(book)
    if tuple(book.class_names) != class_names:
        raise ValueError(
            f"`book` must have the {len(class_names)} classes of the model in their "
            f"order, but has {len(book.class_names)} that differ from them."
        )
    return {site: book.prior(site).numpy() for site in book.sites}


def _as_model(source: Run | PathLike, threads: int) -> OnnxModel:
    """Return the model of a file, or of a run as a file that is gone again."""
    if not isinstance(source, Run):
        return OnnxModel(source, threads=threads)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export_onnx(source, path)
        return OnnxModel(path, threads=threads, is_own=True)


def _held_out(
    source: Run | PathLike, given: Predictions | PathLike | None, num_classes: int
) -> tuple[Predictions | None, str]:
    """Return labelled logits to calibrate on, or None and why there are none."""
    if given is not None:
        known = held_out_logits(given)
        if known.num_classes != num_classes:
            raise ValueError(
                f"`held_out` must have the {num_classes} classes of the model, but has "
                f"{known.num_classes}. Both must come from one model."
            )
        return known, ""
    if not isinstance(source, Run):
        why = "an ONNX file has no held-out logits to calibrate on"
    elif not source.has_val_logits:
        why = "the run has no validation logits to calibrate on"
    elif source.config.eval.views != "one":
        why = "the run's validation logits are of several views of an image"
    else:
        return source.predictions("val"), ""
    return None, f"no mix is estimated: {why}. Give labelled logits (--held-out)."


def serve(
    service: Service,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str = "",
    announce: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Args:
        service: Does the work.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        token: Token that requests must bear; empty asks for none.
        announce: Told the address as soon as connections are taken.
    """
    if not token and host not in LOOPBACK:
        raise ValueError(
            f"`token` must be set to listen beyond this machine, but `host` is {host}. "
            "Set TAILSHIFT_TOKEN."
        )
    listening = _listen(host, port)
    torch.set_num_threads(1)  # estimating leaves the other cores to the model
    # What they say of broken images and forms would let a stranger fill the log.
    warnings.filterwarnings("ignore", module=r"PIL\b")
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)
    config = server_config(build_app(service, token=token))
    name = f"[{host}]" if ":" in host else host
    announce(f"http://{name}:{listening.getsockname()[1]}/")
    uvicorn.Server(config).run(sockets=[listening])


def server_config(app: FastAPI) -> uvicorn.Config:
    """Return the settings of uvicorn, with limits on connections and on the log."""
    connections = max_connections()
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # it would hold what strangers wrote
        server_header=False,
        http=limited_protocol(connections=connections),
        ws="none",
        backlog=connections // 4,  # accepted at once, on top of the connections
        timeout_graceful_shutdown=int(SHUTDOWN_SECONDS) + 5,  # for what is left then
    )
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).addFilter(LogRateLimit())
    return config


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise OSError(
            f"`port` must be free to listen on, but {host}:{port} is not ({error})."
        ) from None
