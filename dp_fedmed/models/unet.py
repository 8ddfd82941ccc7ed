"""A 2-D U-Net (Ronneberger et al. 2015) with GroupNorm, for any image size."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class UNet(nn.Module):
    """Encoder and decoder with skip connections.

    Args:
        input_shape: (channels, height, width) of an image.
        num_classes: output channels, background included.
        channels: width of each level, top to bottom.
        strides: down-sampling between levels, one fewer than `channels`; 2 everywhere by default.

    >>> UNet((1, 50, 70), 2, channels=[8, 16])(torch.zeros(2, 1, 50, 70)).shape
    torch.Size([2, 2, 50, 70])
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        num_classes: int,
        channels: Sequence[int] = (16, 32, 64),
        strides: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        strides = [2] * (len(channels) - 1) if strides is None else list(strides)
        if len(strides) != len(channels) - 1:
            raise ValueError(
                f"UNet: model.args.strides={strides} must have one entry fewer than "
                f"model.args.channels={list(channels)}"
            )
        self.factor = math.prod(strides)
        self.first = _block(input_shape[0], channels[0])
        self.down = nn.ModuleList(
            nn.Sequential(nn.Conv2d(upper, lower, 3, stride, 1), _block(lower, lower))
            for upper, lower, stride in zip(channels, channels[1:], strides, strict=False)
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(lower, upper, stride, stride)
            for upper, lower, stride in zip(channels, channels[1:], strides, strict=False)
        )
        self.merge = nn.ModuleList(_block(2 * upper, upper) for upper in channels[:-1])
        self.head = nn.Conv2d(channels[0], num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape (batch, classes, height, width)."""
        height, width = x.shape[-2:]
        x = F.pad(x, (0, -width % self.factor, 0, -height % self.factor))
        x = self.first(x)
        skips = []
        for down in self.down:
            skips.append(x)
            x = down(x)
        for up, merge, skip in zip(
            reversed(self.up), reversed(self.merge), reversed(skips), strict=True
        ):
            x = merge(torch.cat([skip, up(x)], dim=1))
        logits: Tensor = self.head(x)[..., :height, :width]
        return logits


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.GroupNorm(math.gcd(outputs, 8), outputs),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.GroupNorm(math.gcd(outputs, 8), outputs),
        nn.ReLU(),
    )
