"""
Estimate an unknown mix
=======================

Nobody has labelled the new samples. Labelled samples that the model was not trained on
say what its probabilities are worth; with these, the mix of the new ones is estimated.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.utils import shuffle

import tailshift as ts

# %%
# A model of the digits, 300 held-out samples, and 400 new ones in which the mix is
# another: ten nines for each zero.
X, y = shuffle(*load_digits(return_X_y=True), random_state=0)
model = LogisticRegression(C=0.001, max_iter=2000).fit(X[:600], y[:600])
logits = model.predict_log_proba(X)
held_out = ts.Predictions(
    logits[600:900], y[600:900], source_counts=np.bincount(y[:600])
)

rng = np.random.default_rng(0)
mix = np.linspace(1, 10, 10) / np.linspace(1, 10, 10).sum()
new = 900 + rng.choice(897, size=400, p=mix[y[900:]] / mix[y[900:]].sum())

# %%
# ``adapt`` tests for a shift, estimates the mix, and decides whether to follow it.
found = ts.adapt(held_out, logits[new])
print(found.reason)

# %%
# The estimators can be used by themselves, too.
p_s = ts.priors.from_counts(held_out.source_counts)
em = ts.EMEstimator(source_prior=p_s).fit(held_out.logits, held_out.labels)
truth = np.bincount(y[new]) / len(new)
for name, prior in {
    "no adaptation": p_s.numpy(),
    "EM": em.estimate(logits[new]),
    "MAP, as adapt": found.target_prior.numpy(),
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
