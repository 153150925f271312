"""
Serve an ONNX file
==================

One file with the target prior as an input. The server needs only NumPy and ONNX
Runtime.
"""

import json
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import onnxruntime

import tailshift as ts

# %%
# Train on long-tailed digits, and export with the target prior as a second input. The
# command for it is ``tailshift export RUN -o digits.onnx --target-input``.
folder = Path(tempfile.mkdtemp())
config = ts.load_recipe("digits_lt", ["method.name=lade", "train.epochs=10"])
run = ts.train(config, output=folder / "run")
_ = ts.export(run, folder / "digits.onnx", target_input=True)

# %%
# From here on neither tailshift nor PyTorch is needed. The metadata of the file contain
# what a server has to know, such as the class names.
session = onnxruntime.InferenceSession(folder / "digits.onnx")
for wanted in session.get_inputs():
    print(wanted.name, wanted.type, wanted.shape)
metadata = session.get_modelmeta().custom_metadata_map
names = json.loads(metadata["class_names"])
print(json.loads(metadata["image_size"]), names)

# %%
# The digit with the least certain prediction, for three target priors: as in training,
# uniform, and reversed. Counts work as well as shares.
images = run.config.data.load(root=None, seed=0).test.images.numpy()
p_s = np.float32(json.loads(metadata["source_prior"]))
priors = {"as in training": p_s, "uniform": np.ones(10, "f4"), "reversed": p_s[::-1]}


def predict(images, target_prior):
    return session.run(["probs"], {"images": images, "target_prior": target_prior})[0]


unsure = predict(images, priors["uniform"]).max(axis=1).argmin()
fig, (left, right) = plt.subplots(
    1, 2, figsize=(7, 2.8), width_ratios=[1, 3], layout="constrained"
)
left.imshow(images[unsure, 0], cmap="gray_r")
left.axis("off")
for k, (name, target_prior) in enumerate(priors.items()):
    probs = predict(images[[unsure]], target_prior.copy())[0]
    right.bar(np.arange(10) + 0.27 * (k - 1), probs, 0.27, label=name)
right.set(xlabel="digit", ylabel="probability", xticks=range(10), xticklabels=names)
_ = right.legend(frameon=False)
