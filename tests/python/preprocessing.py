"""preprocessing.safetensors: spectrograms, pipelines of layers and mixtures of images, in the format of
layers.safetensors; and stft.safetensors: the kernels of the initializer STFT."""

import keras
import numpy as np
from common import Fixture, config_of
from keras import layers as L
from layer_cases import case
from layers import add_case


def spectrograms():
    for mode in ("log", "magnitude", "psd", "real", "imag", "angle", "stft"):
        yield case(f"stft_spectrogram_{mode}", L.STFTSpectrogram, (3, 40, 2), mode=mode, frame_length=12, frame_step=5)
    yield case("stft_spectrogram_same", L.STFTSpectrogram, (2, 30, 2), mode="magnitude", frame_length=8, padding="same", window="hamming", periodic=True)
    yield case("stft_spectrogram_expanded", L.STFTSpectrogram, (2, 30, 2), mode="stft", frame_length=9, fft_length=18, expand_dims=True, window=None)
    yield case("stft_spectrogram_first", L.STFTSpectrogram, (2, 2, 30), mode="real", frame_length=8, data_format="channels_first", scaling="spectrum")
    yield case("stft_spectrogram_first_expanded", L.STFTSpectrogram, (2, 2, 30), mode="imag", frame_length=8, data_format="channels_first", expand_dims=True, scaling=None)
    mel = {"fft_length": 32, "sequence_stride": 10, "num_mel_bins": 6, "sampling_rate": 400, "min_freq": 20.0}
    yield case("mel_spectrogram", L.MelSpectrogram, (3, 90), top_db=300.0, **mel)
    yield case("mel_spectrogram_clipped", L.MelSpectrogram, (3, 90), top_db=9.0, ref_power=3.0, min_power=1e-3, **mel)
    yield case("mel_spectrogram_power", L.MelSpectrogram, (2, 90), power_to_db=False, mag_exp=1.4, sequence_length=20, window="hamming", max_freq=150, **mel)


def others():
    image = (2, 4, 5, 3)
    yield case("mix_up_at_rest", L.MixUp, image, alpha=0.3)
    yield case("cut_mix_at_rest", L.CutMix, image, factor=(0.2, 0.8))
    layers = [L.Rescaling(0.5, 0.2), L.Dense(3, activation="tanh"), L.Dense(2)]
    yield case("pipeline", L.Pipeline, (4, 5), layers=layers)


# Keras differentiates through the highest value of the batch, from which `top_db` counts.
WITHOUT_GRADIENT = "mel_spectrogram_clipped"


def kernels():
    fixture = Fixture("stft")
    arguments = [
        {"side": "real"},
        {"side": "imag", "window": "hamming", "periodic": True},
        {"side": "real", "window": "blackman", "scaling": "spectrum"},
        {"side": "imag", "window": "bartlett", "scaling": None},
        {"side": "imag", "window": None},
        {"side": "real", "window": "boxcar", "periodic": True},
    ]
    for i, kwargs in enumerate(arguments):
        initializer = keras.initializers.STFT(**kwargs)
        shape = (7 + i, 1, 9)
        case = {"name": f"stft_{i}", "class_name": "STFT", "config": config_of(initializer), "shape": shape}
        fixture.add(case, {"kernel": np.asarray(initializer(shape), "float32")})
    fixture.save()


def make():
    fixture = Fixture("preprocessing")
    for spec in (*spectrograms(), *others()):
        add_case(fixture, spec)
    del fixture.tensors[f"{WITHOUT_GRADIENT}/grad_input/0"]
    fixture.save()
    kernels()
