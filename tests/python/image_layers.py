"""image_layers.safetensors: layers that resize, crop and augment images, in the format of layers.safetensors."""

from common import Fixture
from keras import layers as L
from layer_cases import case
from layers import add_case


def resizing():
    for how in ("nearest", "bilinear", "bicubic", "lanczos3", "lanczos5"):
        for antialias in (False, True):
            smooth = "_antialias" if antialias else ""
            for size in ((4, 9), (11, 3), (6, 5)):
                name = f"resizing_{how}{smooth}_{size[0]}x{size[1]}"
                yield case(name, L.Resizing, (2, 6, 7, 2), height=size[0], width=size[1], interpolation=how, antialias=antialias)
    for size in ((4, 9), (9, 2), (3, 3)):
        name = f"{size[0]}x{size[1]}"
        yield case(f"resizing_crop_{name}", L.Resizing, (2, 6, 7, 2), height=size[0], width=size[1], crop_to_aspect_ratio=True)
        yield case(f"resizing_pad_{name}", L.Resizing, (2, 6, 7, 2), height=size[0], width=size[1], pad_to_aspect_ratio=True)
        yield case(f"resizing_fill_{name}", L.Resizing, (2, 6, 7, 2), height=size[0], width=size[1], pad_to_aspect_ratio=True, fill_value=0.7)
    for size in ((4, 3), (3, 4), (6, 7), (5, 1), (8, 8), (3, 9), (12, 5)):
        yield case(f"center_crop_{size[0]}x{size[1]}", L.CenterCrop, (2, 6, 7, 2), height=size[0], width=size[1])


def augmentation():
    """Random layers: at inference, and in training with ranges of a single point, which make them deterministic."""
    image = (2, 6, 5, 2)
    yield case("random_flip_at_rest", L.RandomFlip, image, False)
    yield case("random_flip_horizontal_at_rest", L.RandomFlip, image, False, mode="horizontal", seed=3)
    yield case("random_translation_at_rest", L.RandomTranslation, image, False, height_factor=0.3, width_factor=(-0.2, 0.3))
    yield case("random_rotation_at_rest", L.RandomRotation, image, False, factor=0.3)
    yield case("random_zoom_at_rest", L.RandomZoom, image, False, height_factor=0.3)
    yield case("random_contrast_at_rest", L.RandomContrast, image, False, factor=(0.3, 0.4))
    yield case("random_crop_at_rest", L.RandomCrop, image, False, height=6, width=5, seed=3)
    for mode in ("constant", "nearest", "reflect", "wrap"):
        for how in ("nearest", "bilinear"):
            options = {"fill_mode": mode, "interpolation": how, "fill_value": 0.7}
            name = f"{mode}_{how}"
            shift = {"height_factor": (0.29, 0.29), "width_factor": (-0.43, -0.43)}
            yield case(f"random_translation_{name}", L.RandomTranslation, image, True, **shift, **options)
            yield case(f"random_rotation_{name}", L.RandomRotation, image, True, factor=(0.11, 0.11), **options)
            yield case(f"random_zoom_{name}", L.RandomZoom, image, True, height_factor=(0.37, 0.37), **options)
    yield case("random_translation_far", L.RandomTranslation, image, True, height_factor=(1.0, 1.0), width_factor=(-1.0, -1.0))
    yield case("random_rotation_back", L.RandomRotation, image, True, factor=(-0.63, -0.63))
    yield case("random_zoom_in", L.RandomZoom, image, True, height_factor=(-0.45, -0.45), width_factor=(0.21, 0.21))
    yield case("random_zoom_wide", L.RandomZoom, image, True, height_factor=(1.0, 1.0), width_factor=(-0.9, -0.9), fill_mode="nearest")
    yield case("random_contrast_more", L.RandomContrast, image, True, factor=(-0.4, 0.4), value_range=(-1.5, 1.0))
    yield case("random_contrast_none", L.RandomContrast, image, True, factor=(-1.0, 1.0), value_range=(-9.0, 9.0))


def make():
    fixture = Fixture("image_layers")
    for group in (resizing, augmentation):
        for spec in group():
            add_case(fixture, spec)
    fixture.save()
