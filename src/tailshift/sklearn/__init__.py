"""scikit-learn: any classifier with scores, re-targeted to another class mix."""

from tailshift.sklearn.classifier import PriorShiftClassifier, SingleSampleWarning

__all__ = ["PriorShiftClassifier", "SingleSampleWarning"]
