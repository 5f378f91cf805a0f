"""Guards: each protects a value at one stage of the step. To add one, write its class and list it here.

A guard of a part of the loss that not every algorithm has, as the ratio, is also listed in `config.algorithms.PART_OF`.
"""

from grpo_lab.training.guards.adaptive import AdaptiveBeta, AdaptiveLearningRate, SkipOutliers
from grpo_lab.training.guards.coefficients import DualClip, RepresentableEpsilon, Rollback, WarmUp
from grpo_lab.training.guards.gradients import ClipGradients, SkipNonfinite, SkipSpikes
from grpo_lab.training.guards.loss import ClampAdvantages, ClampKL, ClampLogits, ClampLogRatio, DropNonfiniteSamples
from grpo_lab.training.guards.sampling import CheckProbabilities, SafeSampling, SanitizeRewards
from grpo_lab.training.guards.weights import CheckWeights
from grpo_lab.training.interventions import Intervention

GUARDS: dict[str, type[Intervention]] = {
    guard.name: guard
    for guard in (
        Rollback,
        WarmUp,
        AdaptiveLearningRate,
        AdaptiveBeta,
        DualClip,
        RepresentableEpsilon,
        SafeSampling,
        CheckProbabilities,
        SanitizeRewards,
        ClampAdvantages,
        ClampLogits,
        DropNonfiniteSamples,
        ClampLogRatio,
        ClampKL,
        SkipNonfinite,
        SkipSpikes,
        SkipOutliers,
        ClipGradients,
        CheckWeights,
    )
}
