"""The command features: write a feature cache of a data set."""

from pathlib import Path
from typing import Annotated

import typer

from tailshift.cli.app import (
    DataRoot,
    Force,
    Plugins,
    announce,
    app,
    report_interrupts,
)


@app.command(
    "features",
    epilog="Example: tailshift features folder:photos --model lite0 -o bank",
)
def features_command(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="As for train --data, a recipe, or features that were made elsewhere: "
            "npz:FILE, npy:FILE.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The bank's folder.")],
    model: Annotated[
        str, typer.Option(help="The network: lite0, or timm:NAME.")
    ] = "lite0",
    weights: Annotated[
        str, typer.Option(metavar="FILE", help="Weights, if not those published.")
    ] = "",
    image_size: Annotated[
        int,
        typer.Option(help="Height and width that the network sees; 0: by the images."),
    ] = 0,
    views: Annotated[
        int, typer.Option(help="Views of each training image: crops, flips; 1: as is.")
    ] = 1,
    labels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Labels for npy:FILE.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="data.KEY=VALUE",
            help="Change a setting, e.g. data.flip=true.",
        ),
    ] = None,
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Skip images that cannot be read.")
    ] = False,
    data_root: DataRoot = None,
    plugin: Plugins = None,
    force: Force = False,
    jobs: Annotated[int, typer.Option(help="Processes that share the cores.")] = 1,
) -> None:
    """Write image features to a folder, for `train`.

    Run the same command again to resume.
    """
    from tailshift.data import FeatureCache
    from tailshift.recipes import dataset_of
    from tailshift.training.extraction import extract_features

    form, _, path = data.partition(":")
    if form in ("npz", "npy"):
        bank = FeatureCache.from_file(output, path, labels)
    else:
        with report_interrupts():
            bank = extract_features(
                *(dataset_of(data, settings or []), model, output),
                weights=weights,
                image_size=image_size,
                views=views,
                jobs=jobs,
                skip_broken=skip_broken,
                force=force,
                data_root=data_root,
                verbose=True,
            )
    samples = [f"{about.samples:,} {k}" for k, about in bank.facts.splits.items()]
    dim = bank.facts.feature_dim
    announce(
        f"{', '.join(samples)} samples of {dim} features: train --features {output}"
    )
    print(output)
