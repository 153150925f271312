"""
Estimate accuracy without labels
================================

How accurate is a model on a new site where nobody labels? A certificate estimates its
accuracy with an interval. It is refused if the samples are not a mixture of the known
classes.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.utils import shuffle

import tailshift as ts

# %%
# A model of the digits, and 400 labelled samples that it was not trained on.
X, y = shuffle(*load_digits(return_X_y=True), random_state=0)
model = LogisticRegression(C=0.001, max_iter=2000).fit(X[:500], y[:500])
held_out = ts.Predictions(
    model.predict_log_proba(X[500:900]),
    y[500:900],
    source_counts=np.bincount(y[:500]),
)

# %%
# Three sites: the same digits, a class distribution in which small digits are rare, and
# a camera that turns every image upside down.
rng = np.random.default_rng(0)
weights = (1.0 + np.arange(10)) ** 2
shifted = 900 + rng.choice(897, size=500, p=weights[y[900:]] / weights[y[900:]].sum())
places = {
    "as before": (X[900:], y[900:]),
    "other class shares": (X[shifted], y[shifted]),
    "upside down": (X[900:, ::-1], y[900:]),
}
found = {
    name: ts.certify(held_out, model.predict_log_proba(images))
    for name, (images, _) in places.items()
}
for name, certificate in found.items():
    print(f"{name}: {certificate.reason}")

# %%
# The true accuracy (×) needs labels, which the certificate does not see.
fig, ax = plt.subplots(figsize=(6, 2.5), layout="constrained")
for k, (name, (images, labels)) in enumerate(places.items()):
    log_p, certificate = model.predict_log_proba(images), found[name]
    if not certificate.is_refused:
        log_p = ts.post_compensate(
            log_p,
            logit_prior=certificate.source_prior.numpy(),
            target_prior=certificate.target_prior.numpy(),
        )
        ax.plot(certificate.accuracy_interval, [k, k], color="C0", linewidth=6)
    ax.plot(np.mean(log_p.argmax(1) == labels), k, "kx")
ax.set(xlabel="accuracy", yticks=range(3), xlim=(0, 1), ylim=(2.5, -0.5))
_ = ax.set_yticklabels(places)
