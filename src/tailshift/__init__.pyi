"""Where each public name is defined: for type checkers, and for `__init__.py`."""

from tailshift import calibration as calibration
from tailshift import data as data
from tailshift import estimators as estimators
from tailshift import hooks as hooks
from tailshift import losses as losses
from tailshift import methods as methods
from tailshift import metrics as metrics
from tailshift import models as models
from tailshift import priors as priors
from tailshift import sklearn as sklearn
from tailshift import targets as targets
from tailshift.compensation import (
    post_compensate as post_compensate,
)
from tailshift.config import (
    RunConfig as RunConfig,
)
from tailshift.data.features import (
    FeatureCache as FeatureCache,
)
from tailshift.estimators import (
    Adaptation as Adaptation,
)
from tailshift.estimators import (
    BBSEEstimator as BBSEEstimator,
)
from tailshift.estimators import (
    CarriedPrior as CarriedPrior,
)
from tailshift.estimators import (
    Certificate as Certificate,
)
from tailshift.estimators import (
    ConformalSets as ConformalSets,
)
from tailshift.estimators import (
    EMEstimator as EMEstimator,
)
from tailshift.estimators import (
    MAPEstimator as MAPEstimator,
)
from tailshift.estimators import (
    OnlineEstimator as OnlineEstimator,
)
from tailshift.estimators import (
    RLLSEstimator as RLLSEstimator,
)
from tailshift.estimators import (
    SitePriors as SitePriors,
)
from tailshift.estimators import (
    TiltEstimator as TiltEstimator,
)
from tailshift.estimators import (
    adapt as adapt,
)
from tailshift.estimators import (
    measure_logit_prior as measure_logit_prior,
)
from tailshift.evaluation import (
    evaluate as evaluate,
)
from tailshift.losses import (
    BalancedSoftmaxLoss as BalancedSoftmaxLoss,
)
from tailshift.losses import (
    ClassBalancedFocalLoss as ClassBalancedFocalLoss,
)
from tailshift.losses import (
    CrossEntropyLoss as CrossEntropyLoss,
)
from tailshift.losses import (
    FocalLoss as FocalLoss,
)
from tailshift.losses import (
    LADELoss as LADELoss,
)
from tailshift.losses import (
    LDAMLoss as LDAMLoss,
)
from tailshift.losses import (
    LogitAdjustedLoss as LogitAdjustedLoss,
)
from tailshift.losses import (
    balanced_softmax_loss as balanced_softmax_loss,
)
from tailshift.losses import (
    class_balanced_focal_loss as class_balanced_focal_loss,
)
from tailshift.losses import (
    cross_entropy_loss as cross_entropy_loss,
)
from tailshift.losses import (
    focal_loss as focal_loss,
)
from tailshift.losses import (
    lade_loss as lade_loss,
)
from tailshift.losses import (
    lader as lader,
)
from tailshift.losses import (
    ldam_loss as ldam_loss,
)
from tailshift.losses import (
    logit_adjusted_loss as logit_adjusted_loss,
)
from tailshift.models import (
    PostCompensated as PostCompensated,
)
from tailshift.paper.reproduce import (
    reproduce as reproduce,
)
from tailshift.predictions import (
    Predictions as Predictions,
)
from tailshift.recipes import (
    load_recipe as load_recipe,
)
from tailshift.registry import (
    load_plugin as load_plugin,
)
from tailshift.report import (
    report as report,
)
from tailshift.retarget import (
    retarget as retarget,
)
from tailshift.runs.run import (
    Run as Run,
)
from tailshift.runs.run import (
    load_run as load_run,
)
from tailshift.serving import (
    certify as certify,
)
from tailshift.serving import (
    estimate as estimate,
)
from tailshift.serving import (
    predict as predict,
)
from tailshift.serving.export import (
    export as export,
)
from tailshift.training import (
    train as train,
)
from tailshift.training.extraction import (
    extract_features as extract_features,
)

__version__: str
