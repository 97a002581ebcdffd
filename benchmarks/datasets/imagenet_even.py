"""One labelled ImageNet image for every even class, from a zip of JPEG files named by their class index."""

import io
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

FILE = "imagenet_even_500.zip"
#: Part of the short side that is cut out at the centre, as the published evaluation does.
CROP = 0.875


def load(
    data_dir: str | Path, size: int, mean: float = 127.0, std: float = 128.0
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Read all images, in the order of their classes.

    Parameters
    ----------
    data_dir : str or Path
        Folder that holds ``imagenet_even_500.zip``.
    size : int
        Height and width of the result in pixels.
    mean, std : float
        Of the normalisation of pixels from 0 to 255.

    Returns
    -------
    images : ndarray of float32, shape (n, 3, size, size)
        The short side is scaled to size / CROP with bicubic interpolation; the centre is kept.
    labels : ndarray of int64, shape (n,)
        Their classes, of 1000.
    """
    from PIL import Image  # in the extra `bench`

    images, labels = [], []
    with zipfile.ZipFile(Path(data_dir) / FILE) as archive:
        for name in sorted(n for n in archive.namelist() if n.endswith(".jpg")):
            image = Image.open(io.BytesIO(archive.read(name))).convert("RGB")
            scale = round(size / CROP) / min(image.size)
            width, height = (round(side * scale) for side in image.size)
            left, top = (width - size) // 2, (height - size) // 2
            scaled = image.resize((width, height), Image.Resampling.BICUBIC)
            cut = scaled.crop((left, top, left + size, top + size))
            images.append((np.asarray(cut, np.float32).transpose(2, 0, 1) - mean) / std)
            labels.append(int(Path(name).stem))
    return np.stack(images).astype(np.float32), np.array(labels, np.int64)


def is_tuning(labels: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which images may serve choices: those of classes that are multiples of 4. The others judge the result."""
    return labels % 4 == 0
