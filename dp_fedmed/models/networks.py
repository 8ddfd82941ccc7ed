"""Networks without batch statistics: an MLP, a small CNN, torchvision's ResNet-18 and a U-Net."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Sequential):
    """A fully connected network on flattened records.

    >>> MLP((30,), 2, hidden=[16])(torch.zeros(4, 30)).shape
    torch.Size([4, 2])
    """

    def __init__(
        self, input_shape: Sequence[int], num_classes: int, hidden: Sequence[int] = (32,)
    ) -> None:
        super().__init__()
        widths = [math.prod(input_shape), *hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))


class SmallCNN(nn.Sequential):
    """Convolution, GroupNorm, ReLU and pooling per entry of `channels`, then one hidden layer.

    >>> SmallCNN((1, 28, 28), 10)(torch.zeros(4, 1, 28, 28)).shape
    torch.Size([4, 10])
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        num_classes: int,
        channels: Sequence[int] = (16, 32),
        hidden: int = 64,
    ) -> None:
        super().__init__()
        inputs, height, width = input_shape
        if min(height, width) >> len(channels) == 0:
            raise ValueError(
                f"SmallCNN halves the image {len(channels)} times, but it is only "
                f"{height}×{width}: give model.args.channels at most "
                f"{int(math.log2(min(height, width)))} entries"
            )
        layers: list[nn.Module] = []
        for outputs in channels:
            norm = nn.GroupNorm(math.gcd(outputs, 4), outputs)
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), norm, nn.ReLU(), nn.MaxPool2d(2)]
            inputs, height, width = outputs, height // 2, width // 2
        self.features = nn.Sequential(*layers)
        self.head = MLP((inputs, height, width), num_classes, hidden=[hidden]).layers


def small_network(input_shape: Sequence[int], num_classes: int, **options: Any) -> nn.Module:
    """`SmallCNN` for images, `MLP` for rows of a table.

    >>> [type(small_network(shape, 2)).__name__ for shape in ((30,), (3, 16, 16))]
    ['MLP', 'SmallCNN']
    """
    kind = SmallCNN if len(input_shape) == 3 else MLP
    return kind(input_shape, num_classes, **options)


def resnet18(input_shape: Sequence[int], num_classes: int) -> nn.Module:
    """ResNet-18 of torchvision with GroupNorm; images below 64 px keep their size in the stem.

    >>> resnet18((1, 32, 32), 3)(torch.zeros(1, 1, 32, 32)).shape
    torch.Size([1, 3])
    """
    from torchvision.models import resnet18 as torchvision_resnet18

    model: nn.Module = torchvision_resnet18(
        num_classes=num_classes, norm_layer=lambda channels: nn.GroupNorm(32, channels)
    )
    channels, height, width = input_shape
    if min(height, width) < 64:
        model.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    elif channels != 3:
        model.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    return model


class UNet(nn.Module):
    """A 2-D U-Net (Ronneberger et al. 2015) with GroupNorm, for any image size.

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
        levels = list(zip(channels[:-1], channels[1:], strides, strict=True))
        self.down = nn.ModuleList(
            nn.Sequential(nn.Conv2d(upper, lower, 3, stride, 1), _block(lower, lower))
            for upper, lower, stride in levels
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(lower, upper, stride, stride) for upper, lower, stride in levels
        )
        self.merge = nn.ModuleList(_block(2 * upper, upper) for upper in channels[:-1])
        self.head = nn.Conv2d(channels[0], num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape (batch, classes, height, width)."""
        height, width = x.shape[-2:]
        x = self.first(F.pad(x, (0, -width % self.factor, 0, -height % self.factor)))
        skips = []
        for down in self.down:
            skips.append(x)
            x = down(x)
        for up, merge in zip(reversed(self.up), reversed(self.merge), strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], dim=1))
        logits: Tensor = self.head(x)
        return logits[..., :height, :width]


def _block(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        norm = nn.GroupNorm(math.gcd(outputs, 8), outputs)
        layers += [nn.Conv2d(channels, outputs, 3, padding=1), norm, nn.ReLU()]
    return nn.Sequential(*layers)
