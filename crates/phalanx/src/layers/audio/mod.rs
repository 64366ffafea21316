//! Spectrograms of audio signals.

pub(super) mod mel_spectrogram;
pub(super) mod stft_spectrogram;

pub use stft_spectrogram::SpectrogramMode;
