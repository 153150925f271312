"""scikit-learn: any classifier with scores, re-targeted to another prior."""

from tailshift.sklearn.classifier import PriorShiftClassifier, SingleSampleWarning

__all__ = ["PriorShiftClassifier", "SingleSampleWarning"]
