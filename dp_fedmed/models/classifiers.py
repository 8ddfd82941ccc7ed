"""Networks without batch statistics: an MLP, a small CNN, and torchvision's ResNet-18."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor, nn


class MLP(nn.Module):
    """A fully connected network on flattened records.

    >>> import torch
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

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape (batch, classes)."""
        logits: Tensor = self.layers(x)
        return logits


class SmallCNN(nn.Module):
    """Convolution, GroupNorm, ReLU and pooling per entry of `channels`, then one hidden layer.

    >>> import torch
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
            layers += [
                nn.Conv2d(inputs, outputs, 3, padding=1),
                nn.GroupNorm(math.gcd(outputs, 4), outputs),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
            inputs, height, width = outputs, height // 2, width // 2
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.Flatten(),
            nn.Linear(inputs * height * width, hidden),
            nn.ReLU(),
            nn.Linear(hidden, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape (batch, classes)."""
        logits: Tensor = self.head(self.features(x))
        return logits


def small_network(input_shape: Sequence[int], num_classes: int, **options: Any) -> nn.Module:
    """What fits the shape of a record: `SmallCNN` for images, `MLP` for rows of a table.

    >>> [type(small_network(shape, 2)).__name__ for shape in ((30,), (3, 16, 16))]
    ['MLP', 'SmallCNN']
    """
    kind = SmallCNN if len(input_shape) == 3 else MLP
    return kind(input_shape, num_classes, **options)


def resnet18(input_shape: Sequence[int], num_classes: int) -> nn.Module:
    """ResNet-18 of torchvision with GroupNorm; images below 64 px keep their size in the stem.

    >>> import torch
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
