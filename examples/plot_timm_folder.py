"""
A timm network on a folder
==========================

Train any network of timm on a folder of images with one folder per class. The command
for it is ``tailshift train own_images --data folder:PATH --set model.name=timm:NAME``.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

import tailshift as ts

# %%
# Stripes in three directions, 80, 40 and 20 images: nothing has to be downloaded.
folder = Path(tempfile.mkdtemp())
rng = np.random.default_rng(0)
row, column = np.mgrid[:32, :32]
waves = {"across": row, "aslant": row + 0.3 * column, "steep": row + 0.6 * column}
fig, axes = plt.subplots(1, 3, figsize=(5, 1.9), layout="constrained")
for ax, count, name in zip(axes, [80, 40, 20], waves, strict=True):
    (folder / "images" / name).mkdir(parents=True)
    for i in range(count):
        stripes = 60 * np.sin(waves[name] * rng.uniform(0.6, 1.2) + rng.uniform(0, 6))
        pixels = 128 + stripes + rng.normal(0, 40, (32, 32))
        image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
        image.save(folder / "images" / name / f"{i}.png")
    ax.imshow(image, cmap="gray")
    ax.set_title(name)
    ax.axis("off")

# %%
# ``test_resnet`` is the smallest network of timm. For photos use ``timm:resnet50``, and
# omit ``model.pretrained`` to start from its published weights.
config = ts.load_recipe(
    "own_images",
    [
        f"data.path={folder / 'images'}",
        "model.name=timm:test_resnet",
        "model.pretrained=false",
        "train.epochs=6",
        "train.batch_size=16",
        "train.num_workers=0",
    ],
)
run = ts.train(config, output=folder / "run")

# %%
# The run keeps the logits of its test images, so you can score any target afterwards.
for record in ts.evaluate(run.predictions(), ["source", "uniform", "backward:10"]):
    if record.compensated:
        print(f"{record.target}: {record.accuracy:.1%} of {record.num_samples} images")
