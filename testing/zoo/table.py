"""The zoo: published layouts by name, narrow, with small inputs, seeded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from torch import Tensor, nn

from testing.zoo import (
    audio,
    classic,
    convnext,
    dense,
    dense_prediction,
    detection,
    generative,
    mlps,
    mobile,
    resnets,
    scalable,
    sequence,
    several,
    transformer,
    video,
)
from testing.zoo.prepare import Entry, entry, images, tokens

Build = Callable[[], nn.Module]
Make = Callable[[int], Tensor]


def _scalable(build: Callable[[], scalable.Net]) -> tuple[Build, tuple[Make, ...]]:
    return build, (images(*build().input_shape),)


_RGB32, _RGB64, _RGB16 = (images(3, 32, 32),), (images(3, 64, 64),), (images(3, 16, 16),)
_GREY28, _GREY16 = images(1, 28, 28), images(1, 16, 16)
_MIXED = (images(8), tokens(3))

_BUILDERS: Final[dict[str, tuple[Build, tuple[Make, ...]]]] = {
    # plain stacks
    "lenet5": (classic.lenet5, (_GREY28,)),
    "alexnet": (classic.AlexNet, (images(3, 127, 127),)),
    "alexnet_2012": (classic.alexnet_2012, (images(3, 127, 127),)),
    "vgg11_bn": _scalable(partial(scalable.vgg11_bn, width=8)),
    "vgg16": (classic.vgg16, _RGB32),
    "squeezenet": (classic.squeezenet, _RGB64),
    # residual
    "resnet18": _scalable(partial(scalable.resnet18, width=8)),
    "resnet50": _scalable(partial(scalable.resnet50, width=8)),
    "resnet20_option_a": (resnets.resnet_option_a, _RGB32),
    "preact_resnet18": (resnets.preact_resnet, _RGB32),
    "wide_resnet16": (resnets.wide_resnet, _RGB32),
    "resnext": (resnets.resnext, _RGB32),
    "se_resnet18": (resnets.se_resnet, _RGB32),
    "res2net": (resnets.res2net, _RGB32),
    "regnet_x": (partial(resnets.regnet, se=False), _RGB64),
    "regnet_y": (partial(resnets.regnet, se=True), _RGB64),
    "groupnorm_resnet": (resnets.groupnorm_resnet, _RGB32),
    "cbam_resnet": (resnets.cbam_resnet, _RGB16),
    "eca_resnet": (resnets.eca_resnet, _RGB16),
    "repvgg": (resnets.repvgg, _RGB32),
    "squeeze_excite_net": _scalable(scalable.squeeze_excite_net),
    # joined features
    "densenet": (dense.densenet, _RGB64),
    "googlenet": (dense.googlenet, _RGB64),
    "inception_v3": (dense.inception_v3, _RGB64),
    # small devices
    "mobilenet_v1": (mobile.mobilenet_v1, _RGB64),
    "mobilenet_v2": _scalable(partial(scalable.mobilenet_v2, width_mult=0.25)),
    "mobilenet_v3": (mobile.mobilenet_v3_small, _RGB64),
    "efficientnet_b0": (partial(mobile.efficientnet, lite=False), _RGB64),
    "efficientnet_lite": (partial(mobile.efficientnet, lite=True), _RGB64),
    "mnasnet": (mobile.mnasnet, _RGB64),
    "shufflenet_v1": (mobile.shufflenet_v1, _RGB64),
    "shufflenet_v2": (mobile.shufflenet_v2, _RGB64),
    "ghostnet": (mobile.ghostnet, _RGB32),
    "mixnet": (mobile.mixnet, _RGB32),
    "xception": (mobile.xception, _RGB32),
    "convnext": (convnext.convnext, _RGB64),
    "convmixer": (convnext.convmixer, _RGB32),
    # dense prediction
    "unet_transposed": (dense_prediction.UNet, _RGB32),
    "unet_bilinear": (partial(dense_prediction.UNet, bilinear=True), _RGB32),
    "fpn": (dense_prediction.Fpn, _RGB64),
    "retinanet": (dense_prediction.Retina, _RGB64),
    "deeplab_v3": (dense_prediction.DeepLab, _RGB32),
    "hrnet": (dense_prediction.HighResolution, _RGB32),
    "yolo_v8": (detection.YoloV8, _RGB64),
    "yolo_v3": (detection.YoloV3, _RGB32),
    "ssd": (detection.Ssd, _RGB32),
    # image to image
    "autoencoder": _scalable(scalable.autoencoder),
    "vae": (generative.Vae, _RGB16),
    "dcgan": (generative.dcgan_generator, (images(16, 1, 1),)),
    "dcgan_vector": (generative.dcgan_from_vector, (images(16),)),
    "espcn": (generative.espcn, (_GREY16,)),
    "edsr": (generative.edsr, _RGB16),
    "dncnn": (generative.dncnn, (_GREY16,)),
    "ffdnet": (generative.PixelUnshuffleNet, (_GREY16,)),
    "style_transfer": (generative.style_transfer, _RGB32),
    # sound, signals
    "m5": (audio.m5, (images(1, 1600),)),
    "m5_tutorial": (audio.M5Original, (images(1, 1600),)),
    "ds_cnn": (audio.ds_cnn, (images(1, 49, 10),)),
    "tcn": (audio.Tcn, (images(4, 32),)),
    "wavenet": (audio.WaveNet, (images(1, 64),)),
    "gated_cnn": (audio.gated_cnn, (images(4, 32),)),
    "tc_resnet": (audio.tc_resnet, (images(40, 32),)),
    # three dimensions
    "c3d": (video.c3d, (images(3, 8, 32, 32),)),
    "r2plus1d": (video.r2plus1d, (images(3, 4, 16, 16),)),
    "pointnet": (video.PointNet, (images(3, 32),)),
    # linear layers
    "mlp": (mlps.mlp, (images(20),)),
    "mlp_bn": _scalable(scalable.mlp_bn),
    "mlp_autoencoder": (mlps.mlp_autoencoder, (images(64),)),
    "mlp_mixer": (mlps.Mixer, _RGB16),
    "dlrm": (mlps.Recommender, _MIXED),
    "wide_and_deep": (mlps.WideAndDeep, _MIXED),
    # sequences
    "crnn_lstm": (partial(sequence.Crnn, nn.LSTM), (images(1, 16, 32),)),
    "crnn_gru": (partial(sequence.Crnn, nn.GRU), (images(1, 16, 32),)),
    "tagger_lstm": (partial(sequence.Tagger, nn.LSTM), (tokens(12),)),
    "tagger_gru": (partial(sequence.Tagger, nn.GRU), (tokens(12),)),
    "tagger_rnn": (partial(sequence.Tagger, nn.RNN), (tokens(12),)),
    "lstm_classifier": (sequence.LstmClassifier, (images(12, 6),)),
    "text_cnn": (sequence.TextCnn, (tokens(12),)),
    # attention
    "tiny_vit": (transformer.TinyViT, _RGB16),
    "conv_stem_vit": (transformer.ConvStemViT, _RGB16),
    "text_encoder": (transformer.TextEncoder, (tokens(12),)),
    "tiny_gpt": (transformer.TinyGpt, (tokens(12),)),
    # several inputs, several outputs
    "siamese": (several.Siamese, (_GREY16, _GREY16)),
    "metric": (several.Metric, (_GREY16, _GREY16)),
    "multi_head": (several.MultiHead, _RGB32),
    "two_branch": (several.TwoBranch, (images(3, 16, 16), images(6))),
    "film": (several.Bilinear, (images(3, 16, 16), images(4))),
}

ZOO: Final[dict[str, Callable[[], Entry]]] = {
    name: partial(entry, build, *inputs) for name, (build, inputs) in _BUILDERS.items()
}

__all__ = ["ZOO", "Entry"]
