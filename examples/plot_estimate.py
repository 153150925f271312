"""
Estimate an unknown class distribution
======================================

The new samples have no labels. ``adapt`` estimates their class distribution: labelled
samples that the model was not trained on calibrate its probabilities.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.utils import shuffle

import tailshift as ts

# %%
# A model of the digits, 300 held-out samples, and new samples with another class
# distribution: twenty nines per zero.
X, y = shuffle(*load_digits(return_X_y=True), random_state=0)
model = LogisticRegression(C=0.001, max_iter=2000).fit(X[:600], y[:600])
logits = model.predict_log_proba(X)
held_out = ts.Predictions(
    logits[600:900], y[600:900], source_counts=np.bincount(y[:600])
)

rng = np.random.default_rng(0)
kept = np.geomspace(0.05, 1, 10)  # of the samples of each digit
new = 900 + np.flatnonzero(rng.random(897) < kept[y[900:]])

# %%
# ``adapt`` estimates the target prior and decides whether to use it.
found = ts.adapt(held_out, logits[new])
print(found.reason)

# %%
# The estimators can also be used directly.
p_s = ts.priors.from_counts(held_out.source_counts)
em = ts.EMEstimator(source_prior=p_s).fit(held_out.logits, held_out.labels)
truth = np.bincount(y[new]) / len(new)
for name, prior in {
    "no adaptation": p_s.numpy(),
    "EM": em.estimate(logits[new]),
    "MAP, as in adapt": found.estimated_prior.numpy(),
}.items():
    print(f"{name}: off by {np.abs(prior - truth).sum():.2f} in sum")

# %%
fig, ax = plt.subplots(figsize=(6, 3), layout="constrained")
share, (low, high) = found.estimated_prior, found.interval
ax.errorbar(
    range(10), share, [share - low, high - share], fmt="o", label="estimated, 95 %"
)
ax.plot(range(10), truth, "_", markersize=16, color="black", label="true")
ax.set(xlabel="digit", ylabel="share", xticks=range(10), ylim=0)
_ = ax.legend(frameon=False)
