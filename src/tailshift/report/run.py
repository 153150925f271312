"""What a report is made of: the saved predictions of one trained classifier."""

from dataclasses import dataclass

from tailshift.predictions import Predictions


@dataclass(frozen=True)
class ReportRun:
    """One run: a method, its seed and what it predicted for the test set."""

    method: str
    """Display name, as the tables show it: ``"LADE"``."""
    seed: int
    """Runs of a method that differ in the seed are averaged."""
    predictions: Predictions
    """Logits and labels of the test set, with the priors they go by."""
    name: str = ""
    """Where the predictions came from, e.g. the run directory; shown as it is."""
