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
from functools import partial
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dp_fedmed.privacy.streams.reproducible import stream

#: Scales each row to norm 1; a row of zeros stays.
unit = partial(F.normalize, dim=-1, eps=1e-6)


class ScatteringLinear(nn.Sequential):
    """Oriented edges at fixed scales, pooled and normalised per record; then one linear layer.

    The features are the first order of a scattering transform with a half-wave rectifier in place
    of the modulus, followed by random Fourier features of a Gaussian kernel.

    Args:
        input_shape: (channels, height, width) of an image.
        num_classes: the logits.
        scales: widths of the filters in pixels; (1, 2, 3), or (1,) for images below 16 pixels.
        directions: of the edges over half a circle; rising and falling edges count apart.
        pool: side of the square that is averaged; 4, or 2 below 16 pixels.
        stride: distance between such squares; 4, or 1 below 16 pixels.
        fourier: random Fourier features of each kind, cosine and sine; 0 leaves them out; 1024, or
            512 below 16 pixels.
        bandwidth: how fast the kernel falls off, exp(−(bandwidth·distance)²/2); 1.5, or 1.2 below
            16 pixels.

    >>> ScatteringLinear((1, 8, 8), 10)(torch.zeros(4, 1, 8, 8)).shape
    torch.Size([4, 10])
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        num_classes: int,
        scales: Sequence[float] | None = None,
        directions: int = 4,
        pool: int | None = None,
        stride: int | None = None,
        fourier: int | None = None,
        bandwidth: float | None = None,
    ) -> None:
        super().__init__()
        if len(input_shape) != 3:
            raise ValueError(
                f"ScatteringLinear takes images (channels, height, width), not {list(input_shape)}:"
                " use dp_fedmed.models.FourierLinear for tables"
            )
        tiny = min(input_shape[1:]) < 16
        scales = scales or ((1.0,) if tiny else (1.0, 2.0, 3.0))
        fourier = (512 if tiny else 1024) if fourier is None else fourier
        bandwidth = bandwidth or (1.2 if tiny else 1.5)
        pool, stride = pool or (2 if tiny else 4), stride or (1 if tiny else 4)
        if min(input_shape[1:]) < pool:
            raise ValueError(f"model.args.pool={pool} exceeds the image {list(input_shape[1:])}")
        self.edges = OrientedEdges(scales, directions=directions, pool=pool, stride=stride)
        width = self.edges(torch.zeros(1, *input_shape)).shape[1]
        if fourier:
            self.lift = FourierFeatures(width, fourier, bandwidth=bandwidth)
        self.head = zero_linear(2 * fourier or width, num_classes)


class FourierLinear(nn.Module):
    """Random Fourier features of a flattened record; then one linear layer.

    Args:
        input_shape: of a record.
        num_classes: the logits.
        fourier: random features of each kind; 0 means the record itself, scaled to norm 1.
        bandwidth: of the kernel, in units of the root mean square distance that records in
            [-1, 1] can have.
        offset: added to every value, so that records lie around zero.

    >>> FourierLinear((30,), 2)(torch.zeros(4, 30)).shape
    torch.Size([4, 2])
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        num_classes: int,
        fourier: int = 512,
        bandwidth: float = 2.0,
        offset: float = 0.0,
    ) -> None:
        super().__init__()
        width = math.prod(input_shape)
        self.offset = offset
        self.lift = None
        if fourier:
            self.lift = FourierFeatures(width, fourier, bandwidth=bandwidth / math.sqrt(width))
        self.head = zero_linear(2 * fourier or width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape (batch, classes)."""
        moved = x.flatten(1) + self.offset
        logits: Tensor = self.head(unit(moved) if self.lift is None else self.lift(moved))
        return logits


def compact_linear(input_shape: Sequence[int], num_classes: int) -> nn.Module:
    """Frozen features with as few weights as still do: for the hybrid style.

    There a client's own noise, whose norm grows with the number of weights, is clipped together
    with its signal.

    >>> [sum(p.numel() for p in compact_linear(s, 2).parameters()) for s in ((30,), (1, 8, 8))]
    [60, 128]
    """
    if len(input_shape) != 3:
        return FourierLinear(input_shape, num_classes, fourier=0, offset=0.5)
    side = max(2, min(input_shape[1:]) // 4)
    return ScatteringLinear(
        input_shape, num_classes, scales=[1.0], directions=2, pool=side, stride=side, fourier=0
    )


class FilterBankSegmenter(nn.Module):
    """Fixed multi-scale filters at each pixel, random Fourier features of them, one linear layer.

    Args:
        input_shape: (channels, height, width) of an image.
        num_classes: output channels, background included.
        reduce: how many times coarser than the image the grid is on which pixels are judged; the
            logits are interpolated back.
        scales: widths of the Gaussians on that grid, rising, at least two.
        fourier: random Fourier features of each kind.
        bandwidth: of the kernel between pixels.

    >>> FilterBankSegmenter((1, 33, 40), 2)(torch.zeros(2, 1, 33, 40)).shape
    torch.Size([2, 2, 33, 40])
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        num_classes: int,
        reduce: int = 2,
        scales: Sequence[float] = (0.5, 1.0, 2.0, 4.0, 6.0),
        fourier: int = 128,
        bandwidth: float = 1.5,
    ) -> None:
        super().__init__()
        if min(input_shape[1:]) < 4 * reduce:
            raise ValueError(
                f"model.args.reduce={reduce} leaves less than 4×4 of images {list(input_shape[1:])}"
            )
        self.bank = FilterBank(scales, reduce=reduce)
        width = self.bank(torch.zeros(1, *input_shape)).shape[-1]
        self.lift = FourierFeatures(
            width, fourier, bandwidth=bandwidth / math.sqrt(width), centred=False
        )
        self.head = zero_linear(2 * fourier, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape (batch, classes, height, width)."""
        coarse: Tensor = self.head(self.lift(self.bank(x))).movedim(-1, 1)
        return F.interpolate(coarse, x.shape[-2:], mode="bilinear", align_corners=False)


class FilterBank(nn.Module):
    """Brightness, contrast, edges, spread and envelopes around each pixel, relative to its image.

    The same filters look at the image and at one `reduce` times smaller. Input (batch, channels,
    height, width), output (batch, height, width, features) on the smaller grid.
    """

    def __init__(self, scales: Sequence[float], *, reduce: int) -> None:
        super().__init__()
        if len(scales) < 2 or list(scales) != sorted(scales):
            raise ValueError(f"model.args.scales={list(scales)} must rise, with two or more")
        self.reduce = reduce
        self.names = [f"bell{i}" for i in range(len(scales))]
        for name, scale in zip(self.names, scales, strict=True):
            axis = np.arange(-math.ceil(2.5 * scale), math.ceil(2.5 * scale) + 1)
            bell = np.exp(-(axis**2) / (2 * scale**2))
            weights = torch.tensor(bell / bell.sum(), dtype=torch.float32)
            self.register_buffer(name, weights, persistent=False)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Features at each pixel of the coarse grid."""
        x = x - x.mean((2, 3), keepdim=True)
        x = x / (x.pow(2).mean((2, 3), keepdim=True).sqrt() + 0.02)
        coarse = self._around(F.avg_pool2d(x, self.reduce))
        if self.reduce == 1:
            return coarse.movedim(1, -1)
        fine = F.avg_pool2d(self._around(x), self.reduce)
        return torch.cat([fine, coarse], dim=1).movedim(1, -1)

    def _around(self, x: Tensor) -> Tensor:
        """What the filters see around each pixel of one grid, as channels."""
        bells = [self.get_buffer(name) for name in self.names]
        blurred = [blur(x, bell) for bell in bells]
        found = list(blurred)
        found += [2.0 * (fine - coarse) for fine, coarse in pairwise(blurred)]
        for level in blurred[:2]:
            found += [2.0 * blur(slope(level), bell) for bell in bells[:3]]
        squares = x * x
        for level, bell in zip(blurred[1:], bells[1:], strict=True):
            spread = (blur(squares, bell) - level * level).clamp(min=1e-6).sqrt()
            found += [spread, (blurred[0] - level) / (spread + 0.2)]
        found += self._envelopes(blurred[0], blurred[-1])
        return torch.cat(found, dim=1)

    def _envelopes(self, x: Tensor, background: Tensor) -> list[Tensor]:
        """Grey openings and closings, which fill dark and bright nuclei, and the local range."""
        found = []
        for side in (3, 7):
            high, low = highest(x, side), lowest(x, side)
            closed, opened = lowest(high, side), highest(low, side)
            found += [high, low, closed, opened, closed - background, opened - background]
        bell = self.get_buffer(self.names[len(self.names) // 2])
        low = blur(lowest(x, 11), bell)
        span = blur(highest(x, 11), bell) - low
        return [*found, 2.0 * (x - low) / (span + 0.3) - 1.0]


def blur(x: Tensor, bell: Tensor) -> Tensor:
    """Each channel smoothed by a separable kernel; the border is repeated outwards."""
    down, across = (_smoothing(size, bell) for size in x.shape[-2:])
    return down @ x @ across.T


def _smoothing(size: int, bell: Tensor) -> Tensor:
    """The kernel as a matrix: several times faster on small images than a convolution."""
    reach = len(bell) // 2
    rows = torch.arange(size, device=bell.device)
    shifts = torch.arange(-reach, reach + 1, device=bell.device)
    columns = (rows[:, None] + shifts).clamp(0, size - 1)
    return torch.zeros(size, size, device=bell.device, dtype=bell.dtype).scatter_add(
        1, columns, bell.expand(size, -1)
    )


def slope(x: Tensor) -> Tensor:
    """The length of the gradient at each pixel."""
    padded = F.pad(x, (1, 1, 1, 1), mode="replicate")
    across = padded[..., 1:-1, 2:] - padded[..., 1:-1, :-2]
    down = padded[..., 2:, 1:-1] - padded[..., :-2, 1:-1]
    return (across * across + down * down + 1e-8).sqrt()


def highest(x: Tensor, side: int) -> Tensor:
    """The maximum over a square around each pixel, by rows and then by columns."""
    rows = F.max_pool2d(x, (1, side), 1, (0, side // 2))
    return F.max_pool2d(rows, (side, 1), 1, (side // 2, 0))


def lowest(x: Tensor, side: int) -> Tensor:
    """The minimum over a square around each pixel."""
    return -highest(-x, side)


class OrientedEdges(nn.Module):
    """Rectified Gaussian derivatives, pooled, centred per channel, as one vector of norm 1.

    Input (batch, channels, height, width), output (batch, features).
    """

    def __init__(self, scales: Sequence[float], *, directions: int, pool: int, stride: int) -> None:
        super().__init__()
        self.pool, self.stride = pool, stride
        self.names = [f"bank{i}" for i in range(len(scales))]
        for name, scale in zip(self.names, scales, strict=True):
            angles = np.pi * np.arange(directions) / directions
            bank = np.stack([gaussian_derivative(scale, angle) for angle in angles])
            weights = torch.tensor(bank[:, None], dtype=torch.float32)
            self.register_buffer(name, weights, persistent=False)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Features of norm 1."""
        batch, channels, height, width = x.shape
        planes = x.reshape(batch * channels, 1, height, width)
        found = []
        for name in self.names:
            bank = self.get_buffer(name)
            change = F.conv2d(planes, bank, padding=bank.shape[-1] // 2)
            edges = torch.cat([F.relu(change), F.relu(-change)], dim=1)
            pooled = F.avg_pool2d(edges, self.pool, self.stride)
            found.append(unit((pooled - pooled.mean((2, 3), keepdim=True)).reshape(batch, -1)))
        return unit(torch.cat(found, dim=1))


class FourierFeatures(nn.Module):
    """cos(ωx) and sin(ωx) for fixed Gaussian ω (Rahimi & Recht 2007), centred, of norm 1.

    Input (batch, ..., inputs), output (batch, ..., 2·count). `centred` takes off each record's own
    mean of cos(ωx): what all records share would only use up the clipping norm.
    """

    def __init__(self, inputs: int, count: int, *, bandwidth: float, centred: bool = True) -> None:
        super().__init__()
        self.centred = centred
        omega = stream(0, "frozen-fourier", inputs, count).standard_normal((inputs, count))
        frequencies = torch.tensor(bandwidth * omega, dtype=torch.float32)
        self.register_buffer("omega", frequencies, persistent=False)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Features of norm 1."""
        turned = x @ self.get_buffer("omega")
        cosine = turned.cos()
        if self.centred:
            cosine = cosine - cosine.mean(dim=-1, keepdim=True)
        return unit(torch.cat([cosine, turned.sin()], dim=-1))


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
    kernel = bell * (across * np.cos(angle) + down * np.sin(angle))
    return np.asarray(kernel / np.abs(kernel).sum())
