import numpy as np
import pytest
import torch

from dp_fedmed.errors import ConfigError
from dp_fedmed.models.backbones import DEFAULT_LAYERS, Backbone, make_backbone, tiny_network

NAMES = ("wide_resnet50_2", "resnet18", "mobilenet_v2")


def images(n=2, channels=3, size=64, seed=0):
    rng = np.random.Generator(np.random.Philox(seed))
    return torch.from_numpy(rng.integers(0, 256, (n, channels, size, size)).astype(np.uint8))


@pytest.mark.parametrize("name", NAMES)
def test_every_backbone_gives_its_layers(name):
    backbone = make_backbone(name, weights="random")
    maps = backbone(images())
    assert len(maps) == len(DEFAULT_LAYERS[name])
    assert maps[0].shape[2] >= maps[1].shape[2]
    assert not any(parameter.requires_grad for parameter in backbone.parameters())


def test_filters_need_no_weights_and_see_a_defect():
    backbone = make_backbone("filters")
    plain = torch.full((1, 3, 64, 64), 120, dtype=torch.uint8)
    plain[..., ::4] = 140
    scratched = plain.clone()
    scratched[..., 30:34, 10:50] = 255
    gap = (backbone(plain)[0] - backbone(scratched)[0]).abs().sum(dim=1)[0]
    assert gap.shape == (16, 16)
    assert gap[7:9, 4:12].mean() > 3 * gap[:4].mean()


def test_layers_can_be_chosen_and_come_in_the_order_asked_for():
    backbone = make_backbone("mobilenet_v2", weights="random", layers=["features.6", "features.3"])
    assert [tuple(m.shape[1:]) for m in backbone(images())] == [(32, 8, 8), (24, 16, 16)]


def test_what_follows_the_last_layer_is_not_computed():
    network = tiny_network()
    called = []
    network[2].register_forward_hook(lambda *_: called.append(1))
    Backbone(network, layers=("0", "1"))(images())
    assert not called


def test_an_unknown_layer_is_answered_with_those_there_are():
    with pytest.raises(ConfigError, match=r"features\.99.*features\.13"):
        make_backbone("mobilenet_v2", weights="random", layers=["features.99"])


def test_an_unknown_backbone():
    with pytest.raises(ConfigError, match=r"backbone=alexnet.*resnet18"):
        make_backbone("alexnet")


def test_an_image_does_not_depend_on_its_neighbours_in_the_batch():
    backbone = make_backbone("mobilenet_v2", weights="random").train()
    batch = images(4)
    together = backbone(batch)[1][1]
    alone = backbone(batch[1:2])[1][0]
    assert torch.allclose(together, alone, atol=1e-5)


def test_grey_is_the_same_as_three_equal_channels():
    backbone = make_backbone("tiny")
    grey = images(channels=1)
    for one, three in zip(backbone(grey), backbone(grey.expand(-1, 3, -1, -1)), strict=True):
        assert torch.equal(one, three)


def test_the_seed_decides_random_weights_and_nothing_else_is_disturbed():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, two, other = (make_backbone("tiny", seed=seed)(images())[0] for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_floats_are_refused():
    with pytest.raises(ValueError, match="uint8"):
        make_backbone("tiny")(torch.zeros(1, 3, 8, 8))


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_weights_from_a_file(tmp_path, suffix):
    network = make_backbone("mobilenet_v2", weights="random", seed=3)
    file = tmp_path / f"weights{suffix}"
    state = network.network.state_dict()
    if suffix == ".pth":
        torch.save(state, file)
    else:
        from safetensors.torch import save_file

        save_file({key: value.contiguous() for key, value in state.items()}, file)
    loaded = make_backbone("mobilenet_v2", weights=str(file), seed=4)
    assert torch.equal(loaded(images())[1], network(images())[1])


def test_weights_from_torch_hubs_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    network = make_backbone("mobilenet_v2", weights="random", seed=3)
    (tmp_path / "checkpoints").mkdir()
    torch.save(network.network.state_dict(), tmp_path / "checkpoints/mobilenet_v2-b0353104.pth")
    assert torch.equal(make_backbone("mobilenet_v2")(images())[1], network(images())[1])


def test_offline_the_error_names_the_remedy(tmp_path, monkeypatch):
    def offline(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", offline)
    with pytest.raises(ConfigError) as caught:
        make_backbone("mobilenet_v2")
    for word in ("mobilenet_v2-b0353104.pth", "TORCH_HOME/hub/checkpoints", "weights=random"):
        assert word in str(caught.value)


def test_a_pickle_that_runs_code_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    file = tmp_path / "evil.pth"
    torch.save({"x": Evil()}, file)
    with pytest.raises(ConfigError, match=r"weights=evil\.pth is not a file of tensors"):
        make_backbone("resnet18", weights=str(file))
    assert not (tmp_path / "ran").exists()


def test_weights_of_another_network_and_no_file(tmp_path):
    file = tmp_path / "resnet.pth"
    torch.save(make_backbone("resnet18", weights="random").network.state_dict(), file)
    with pytest.raises(ConfigError, match="are not those of mobilenet_v2"):
        make_backbone("mobilenet_v2", weights=str(file))
    with pytest.raises(ConfigError, match=r"weights=none\.pth is not a file"):
        make_backbone("mobilenet_v2", weights=str(tmp_path / "none.pth"))
