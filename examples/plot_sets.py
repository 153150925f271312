"""
Prediction sets
===============

Where one answer is too bold, give a set of classes that holds the right one nine times
in ten. Under another class mix the promise fails, unless the mix is taken into account.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import tailshift as ts

# %%
# Five overlapping clouds. The model has seen 40 of the first for each of the last.
num_classes, p_s = 5, ts.priors.from_counts([400, 160, 60, 25, 10])
centres = 1.6 * torch.eye(num_classes)


def sample(prior, size, seed):
    """Return the logits of the best model for the source prior, and the labels."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.multinomial(prior, size, replacement=True, generator=generator)
    x = centres[y] + torch.randn(size, num_classes, generator=generator)
    return x @ centres + p_s.log().float(), y


held_out = ts.Predictions(*sample(p_s, 4000, seed=0), trained_prior=p_s)
sets = ts.ConformalSets(0.9).fit(held_out)

# %%
# From the training mix to its reverse: sets made for the training mix, and for the mix
# at hand.
tilts = np.linspace(1, -1, 9)
lines = {"ignoring the shift": [], "for this mix": []}
sizes = {"ignoring the shift": [], "for this mix": []}
for k, tilt in enumerate(tilts):
    p_t = p_s**tilt / (p_s**tilt).sum()
    logits, y = sample(p_t, 4000, seed=1 + k)
    for name, prior in {"ignoring the shift": p_s, "for this mix": p_t}.items():
        is_in = sets.sets(logits, prior)
        lines[name].append(is_in[torch.arange(len(y)), y].float().mean())
        sizes[name].append(is_in.sum(1).float().mean())

# %%
fig, axes = plt.subplots(1, 2, figsize=(7, 3), layout="constrained")
for name in lines:
    axes[0].plot(tilts, lines[name], label=name)
    axes[1].plot(tilts, sizes[name], label=name)
axes[0].axhline(0.9, color="grey", linestyle=":")
axes[0].set(xlabel="1: training mix, −1: reversed", ylabel="coverage")
axes[1].set(xlabel="1: training mix, −1: reversed", ylabel="classes a set")
axes[0].legend(frameon=False)
axes[0].invert_xaxis()
axes[1].invert_xaxis()
print({name: f"{min(line):.2f}" for name, line in lines.items()})
