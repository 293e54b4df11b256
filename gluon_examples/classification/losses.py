"""The loss that the classification recipe trains with."""

from mxnet import gluon


class SmoothedCrossEntropy(gluon.loss.Loss):
    """Cross-entropy against labels of which a part is spread evenly over all classes (arXiv 1512.00567).

    ``(1 - e) CE(label) + e mean over classes of CE(class)``, one value a sample.

    Parameters
    ----------
    smoothing : float, default 0
        e, from 0 (plain cross-entropy) up to, but not including, 1.
    """

    def __init__(self, smoothing=0.0, **kwargs):
        super().__init__(weight=None, batch_axis=0, **kwargs)
        self._smoothing = smoothing

    def hybrid_forward(self, F, scores, label):
        # In float32, whatever the network computes in: float16 has too few digits for sums of exponentials.
        log_probabilities = F.log_softmax(F.cast(scores, 'float32'), axis=-1)
        loss = -F.pick(log_probabilities, label, axis=-1)
        if self._smoothing:
            loss = (1 - self._smoothing) * loss - self._smoothing * log_probabilities.mean(axis=-1)
        return loss
