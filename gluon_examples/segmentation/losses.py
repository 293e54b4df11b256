"""The loss that the segmentation recipe trains with."""

from mxnet import gluon


class PixelCrossEntropy(gluon.loss.Loss):
    """Cross-entropy of scores and auxiliary scores, summed over an image's labelled pixels, and how many these are.

    ``CE(scores) + w CE(auxiliary scores)``, to be divided by the number of labelled pixels in the batches of all workers
    (the trainer's `normalizer`).

    GluonCV's MixSoftmaxCrossEntropyLoss says the same, but its gradient is another: SoftmaxOutput, on which it rests, takes
    no account of what is done with its result, so that the auxiliary weight has no effect on it, and it divides by the
    labelled pixels of one worker's batch.

    Parameters
    ----------
    aux_weight : float, default 0.5
        w.
    """

    def __init__(self, aux_weight=0.5, **kwargs):
        super().__init__(weight=None, batch_axis=0, **kwargs)
        self._aux_weight = aux_weight

    def hybrid_forward(self, F, scores, aux_scores, mask):
        """Loss of each image, shape (batch,), and the number of labelled pixels, shape (1,).

        `mask` has shape (batch, height, width); -1 is no label.
        """
        labelled = mask >= 0
        loss = self._one(F, scores, mask, labelled) + self._aux_weight * self._one(F, aux_scores, mask, labelled)
        return loss, labelled.astype('float32').sum().reshape(1)

    def _one(self, F, scores, mask, labelled):
        # In float32, whatever the network computes in: float16 has too few digits for sums of exponentials.
        # Classes last: on CPUs that is the axis along which it is fast.
        scores = F.transpose(F.cast(scores, 'float32'), axes=(0, 2, 3, 1))
        loss = -F.pick(F.log_softmax(scores, axis=-1), F.maximum(mask, 0), axis=-1)
        return F.where(labelled, loss, F.zeros_like(loss)).sum(axis=(1, 2))
