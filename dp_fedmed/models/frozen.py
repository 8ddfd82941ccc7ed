"""Frozen features under a small trainable head: models that spend a privacy budget well.

DP-SGD pays for what is trained. Fixed filters cost nothing, and a linear head on features of norm 1
has gradients of about equal, bounded norm, so that clipping biases little; the noise that then
reaches a logit does not depend on how many features there are (Tramèr & Boneh 2021). Every constant
here is public and the same at every client: no statistic of anybody's records is used, and nothing
that is frozen is sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dp_fedmed.randomness import stream


class ScatteringLinear(nn.Module):
    """Oriented edges at fixed scales, pooled and normalised per record; then one linear layer.

    The features are the first order of a scattering transform with a half-wave rectifier in place
    of the modulus, followed by random Fourier features of a Gaussian kernel.

    Args:
        input_shape: (channels, height, width) of an image.
        num_classes: the logits.
        scales: widths of the filters in pixels.
        orientations: directions per scale, over the whole circle.
        pool: side of the square that is averaged.
        stride: distance between such squares.
        fourier: random Fourier features of each kind, cosine and sine; 0 leaves them out.
        bandwidth: how fast the kernel falls off: exp(−(bandwidth·distance)²/2).

    >>> ScatteringLinear((1, 8, 8), 10)(torch.zeros(4, 1, 8, 8)).shape
    torch.Size([4, 10])
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        num_classes: int,
        scales: Sequence[float] = (1.0,),
        orientations: int = 8,
        pool: int = 2,
        stride: int = 1,
        fourier: int = 1024,
        bandwidth: float = 1.0,
    ) -> None:
        super().__init__()
        if len(input_shape) != 3:
            raise ValueError(
                f"ScatteringLinear takes images (channels, height, width), not {list(input_shape)}:"
                " use dp_fedmed.models.FourierLinear for tables"
            )
        if min(input_shape[1:]) < pool:
            raise ValueError(f"model.args.pool={pool} exceeds the image {list(input_shape[1:])}")
        edges = OrientedEdges(scales, orientations=orientations, pool=pool, stride=stride)
        width = edges(torch.zeros(1, *input_shape)).shape[1]
        layers: list[nn.Module] = [edges]
        if fourier:
            layers.append(FourierFeatures(width, fourier, bandwidth=bandwidth))
            width = 2 * fourier
        self.features = nn.Sequential(*layers)
        self.head = zero_linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape (batch, classes)."""
        logits: Tensor = self.head(self.features(x))
        return logits


class FourierLinear(nn.Module):
    """Random Fourier features of a flattened record; then one linear layer.

    Args:
        input_shape: of a record.
        num_classes: the logits.
        fourier: random features of each kind; 0 means the record itself, scaled to norm 1.
        bandwidth: of the kernel, in units of the root mean square distance that records in
            [-1, 1] can have.

    >>> FourierLinear((30,), 2)(torch.zeros(4, 30)).shape
    torch.Size([4, 2])
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        num_classes: int,
        fourier: int = 512,
        bandwidth: float = 1.0,
    ) -> None:
        super().__init__()
        width = math.prod(input_shape)
        layers: list[nn.Module] = [nn.Flatten()]
        if fourier:
            layers.append(FourierFeatures(width, fourier, bandwidth=bandwidth / math.sqrt(width)))
            width = 2 * fourier
        else:
            layers.append(UnitNorm())
        self.features = nn.Sequential(*layers)
        self.head = zero_linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape (batch, classes)."""
        logits: Tensor = self.head(self.features(x))
        return logits


class OrientedEdges(nn.Module):
    """Rectified Gaussian derivatives, pooled, centred per channel, as one vector of norm 1.

    Input (batch, channels, height, width), output (batch, features).
    """

    def __init__(
        self, scales: Sequence[float], *, orientations: int, pool: int, stride: int
    ) -> None:
        super().__init__()
        self.pool, self.stride = pool, stride
        self.names = [f"bank{i}" for i in range(len(scales))]
        for name, scale in zip(self.names, scales, strict=True):
            angles = 2 * np.pi * np.arange(orientations) / orientations
            bank = np.stack([gaussian_derivative(scale, angle) for angle in angles])
            self.register_buffer(name, _frozen(bank[:, None]), persistent=False)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Features of norm 1."""
        batch, channels, height, width = x.shape
        planes = x.reshape(batch * channels, 1, height, width)
        found = []
        for name in self.names:
            bank = self.get_buffer(name)
            edges = F.relu(F.conv2d(planes, bank, padding=bank.shape[-1] // 2))
            pooled = F.avg_pool2d(edges, self.pool, self.stride)
            found.append(unit((pooled - pooled.mean((2, 3), keepdim=True)).reshape(batch, -1)))
        return unit(torch.cat(found, dim=1))


class FourierFeatures(nn.Module):
    """cos(ωx) and sin(ωx) for fixed Gaussian ω (Rahimi & Recht 2007), centred, of norm 1.

    The mean of cos(ωx) over ω is known for records of norm 1, and is taken off: what all records
    share would only use up the clipping norm.
    """

    def __init__(self, inputs: int, count: int, *, bandwidth: float) -> None:
        super().__init__()
        omega = stream(0, "frozen-fourier", inputs, count).standard_normal((inputs, count))
        self.register_buffer("omega", _frozen(bandwidth * omega), persistent=False)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Features of norm 1."""
        turned = x @ self.get_buffer("omega")
        cosine = turned.cos()
        return unit(torch.cat([cosine - cosine.mean(dim=1, keepdim=True), turned.sin()], dim=1))


class UnitNorm(nn.Module):
    """Each record by itself, scaled to norm 1."""

    def forward(self, x: Tensor) -> Tensor:
        """Rows of norm 1."""
        return unit(x)


def unit(rows: Tensor) -> Tensor:
    """Rows scaled to norm 1; a row of zeros stays.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    return rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-6)


def zero_linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer that starts at zero, without a bias.

    Every record's gradient would have the bias in common, at the price of half the clipping norm.
    """
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.zeros_(layer.weight)
    return layer


def gaussian_derivative(scale: float, angle: float) -> np.ndarray:
    """The derivative of a Gaussian along a direction, odd side length, absolute sum 1.

    >>> gaussian_derivative(1.0, 0.0).shape, round(float(abs(gaussian_derivative(2.0, 1.0)).sum()))
    ((3, 3), 1)
    """
    reach = max(1, round(2.5 * scale) - 1)
    axis = np.arange(-reach, reach + 1, dtype=np.float64)
    across, down = axis[None, :], axis[:, None]
    bell = np.exp(-(across**2 + down**2) / (2 * scale**2))
    kernel: np.ndarray = bell * (across * np.cos(angle) + down * np.sin(angle))
    return kernel / np.abs(kernel).sum()


def _frozen(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
