"""Real images for real networks, in the normalisation that their authors state, or that their files hold."""

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfold.graph.run.session import InputInfo

Arrays = dict[str, npt.NDArray[Any]]

#: Images that a fold is shown, and images that it is judged by.
SHOWN, HELD_OUT = 100, 50
_IMAGENET = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
_CIFAR = ((125.307, 122.961, 113.8575), (51.5865, 50.847, 51.255))
_UNIT = (0.0, 255.0)


@dataclass(frozen=True)
class Form:
    """How a network reads images.

    Parameters
    ----------
    scale : pair
        Mean and standard deviation of its pixels from 0 to 255, each for all channels or for every one.
    size : pair of int, optional
        Height and width, where the file leaves them free.
    source : {'photographs', 'cifar10'}
        Which images it reads.
    is_bgr : bool
        Whether blue comes first.
    shown, held_out : int
        How many images it is shown and judged by: fewer where images are large.
    """

    scale: tuple[Any, Any]
    size: tuple[int, int] | None = None
    source: str = "photographs"
    is_bgr: bool = False
    shown: int = SHOWN
    held_out: int = HELD_OUT


#: By the name of the file; cheap ones come first.
FORMS = {
    "cifar100edge": Form(_CIFAR, source="cifar10"),
    "tinycnn_esp": Form(_CIFAR, source="cifar10"),
    "winml_classifier": Form(_CIFAR, source="cifar10"),
    "osnet_x025": Form(_IMAGENET),
    "mtcnn_onet": Form((127.5, 128.0)),
    "mobilefacenet": Form((127.5, 128.0)),
    "ppocr_cls": Form((127.5, 127.5), (48, 192)),
    "face_mesh": Form(_UNIT),
    "yolofastestv2": Form(_UNIT),
    "nanodet_m": Form(((103.53, 116.28, 123.675), (57.375, 57.12, 58.395)), is_bgr=True),
    "ppocr_det_v2": Form(_IMAGENET, (224, 224)),
    "mediapipe_seg": Form(_UNIT),
    "animejanai": Form(_UNIT, (96, 96)),
    "pairlie": Form(_UNIT, (128, 128)),
    "mlsd_tiny": Form((127.5, 127.5), shown=50),
    "tbefn": Form(_UNIT, shown=50),
    "vit_ibp": Form(_UNIT, source="cifar10"),
    "ssd_simplified": Form(_IMAGENET, shown=48, held_out=48),
    "lstr_lane": Form(_IMAGENET, shown=24, held_out=24),
    "xfeat": Form(_UNIT, shown=12, held_out=12),
    "yolo11n_int8": Form(_UNIT),
    "mosaic_style": Form((0.0, 1.0), shown=8, held_out=8),
}


def real_inputs(name: str, infos: list[InputInfo], data: Path) -> tuple[Arrays, Arrays]:
    """Return the samples that a fold of a file is shown, and others that judge it; no image is in both."""
    form = FORMS[name]
    image = max(infos, key=lambda info: len(info.shape))
    is_last = image.shape[-1] in (3, 4)
    channels, height, width = (image.shape[i] for i in ((3, 1, 2) if is_last else (1, 2, 3)))
    height, width = form.size or (height or 0, width or 0)
    total = form.shown + form.held_out
    pixels = _cifar10(data, total) if form.source == "cifar10" else _photographs(data, total, height, width)
    mean, std = (np.asarray(v, np.float32) for v in form.scale)
    values: Any = ((pixels[..., ::-1] if form.is_bgr else pixels).astype(np.float32) - mean) / std
    if channels == 1:
        values = values.mean(axis=3, keepdims=True)
    if channels == 4:  # opaque
        values = np.concatenate([values, np.ones_like(values[..., :1])], axis=3)
    if not is_last:
        values = values.transpose(0, 3, 1, 2)
    feeds: Arrays = {image.name: np.ascontiguousarray(values).astype(image.dtype)}
    for other in infos:
        if other.name != image.name:
            feeds[other.name] = _beside(other, total, height, width)
    order = np.random.default_rng(0).permutation(total)
    parts = order[: form.shown], order[form.shown :]
    shown, held_out = ({key: value[np.sort(part)] for key, value in feeds.items()} for part in parts)
    return shown, held_out


def _beside(info: InputInfo, count: int, height: int, width: int) -> npt.NDArray[Any]:
    """Return another input: a mask that hides nothing, or a number of the middle."""
    if len(info.shape) == 4:
        return np.zeros((count, 1, height, width), info.dtype)
    return np.full((count, *(d for d in info.shape[1:] if isinstance(d, int))), 0.5, info.dtype)


def _photographs(data: Path, count: int, height: int, width: int) -> npt.NDArray[np.uint8]:
    from PIL import Image  # in the extra `bench`

    with zipfile.ZipFile(data / "imagenet_even_500.zip") as archive:
        names = sorted(n for n in archive.namelist() if n.endswith(".jpg"))
        chosen = [names[i] for i in np.linspace(0, len(names) - 1, count).astype(int)]
        images = [Image.open(io.BytesIO(archive.read(n))).convert("RGB").resize((width, height)) for n in chosen]
    return np.stack([np.asarray(image) for image in images])


def _cifar10(data: Path, count: int) -> npt.NDArray[np.uint8]:
    with np.load(data / "cifar10_test.npz") as archive:
        images: npt.NDArray[np.uint8] = archive["x"][:count]
    return images
