"""
Prediction sets
===============

Predict a set of classes that contains the true class with a probability of 90 %. Under
label shift this coverage is lost, unless the sets are made for the target prior.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import tailshift as ts

# %%
# Five overlapping Gaussian classes. The first is 40 times as frequent as the last.
num_classes, p_s = 5, ts.priors.from_counts([400, 160, 60, 25, 10])
centres = 1.6 * torch.eye(num_classes)


def sample(prior, size, seed):
    """Return the logits of the best model for the source prior, and the labels."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.multinomial(prior, size, replacement=True, generator=generator)
    x = centres[y] + torch.randn(size, num_classes, generator=generator)
    return x @ centres + p_s.log().float(), y


held_out = ts.Predictions(*sample(p_s, 4000, seed=0), logit_prior=p_s)
sets = ts.ConformalSets(0.9).fit(held_out)

# %%
# Targets from the source prior to its reverse: sets for the source prior, and sets for
# the target prior.
tilts = np.linspace(1, -1, 9)
lines = {"ignoring the shift": [], "for the target prior": []}
sizes = {"ignoring the shift": [], "for the target prior": []}
for k, tilt in enumerate(tilts):
    p_t = p_s**tilt / (p_s**tilt).sum()
    logits, y = sample(p_t, 4000, seed=1 + k)
    for name, prior in {"ignoring the shift": p_s, "for the target prior": p_t}.items():
        is_in = sets.predict_sets(logits, prior)
        lines[name].append(is_in[torch.arange(len(y)), y].float().mean())
        sizes[name].append(is_in.sum(1).float().mean())

# %%
fig, axes = plt.subplots(1, 2, figsize=(7, 3), layout="constrained")
for name in lines:
    axes[0].plot(tilts, lines[name], label=name)
    axes[1].plot(tilts, sizes[name], label=name)
axes[0].axhline(0.9, color="grey", linestyle=":")
axes[0].set(xlabel="exponent γ (1: source, −1: reversed)", ylabel="coverage")
axes[1].set(xlabel="exponent γ (1: source, −1: reversed)", ylabel="classes per set")
axes[0].legend(frameon=False)
axes[0].invert_xaxis()
axes[1].invert_xaxis()
print({name: f"{min(line):.2f}" for name, line in lines.items()})
