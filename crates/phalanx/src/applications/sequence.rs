//! Text classifiers: a recurrent one and a convolutional one. Both take tokens and give logits.

use crate::error::Result;
use crate::layer::LayerExt;
use crate::layers::{Bidirectional, Conv1D, Dense, Embedding, GlobalMaxPooling1D, LSTM};
use crate::model::{Apply, Input, Model};

/// Two bidirectional LSTMs of 64 units on `length` tokens of a vocabulary.
///
/// # Errors
/// Sizes of zero.
pub fn text_lstm(vocabulary: usize, length: usize, classes: usize) -> Result<Model> {
    let tokens = Input::new([length]).integers().named("tokens").symbol();
    let x = Embedding::new(vocabulary, 128).named("embedding").apply(&tokens);
    let first = Bidirectional::new(LSTM::new(64).return_sequences(true));
    let x = first.named("bidirectional_1").apply(&x);
    let x = Bidirectional::new(LSTM::new(64)).named("bidirectional_2").apply(&x);
    Model::with_name("lstm", &tokens, Dense::new(classes).named("logits").apply(&x))
}

/// Two convolutions with windows of 7 on `length` tokens of a vocabulary; at least 25.
///
/// # Errors
/// Sizes of zero, or sequences that are too short.
pub fn text_cnn(vocabulary: usize, length: usize, classes: usize) -> Result<Model> {
    let tokens = Input::new([length]).integers().named("tokens").symbol();
    let mut x = Embedding::new(vocabulary, 128).named("embedding").apply(&tokens);
    for name in ["conv_1", "conv_2"] {
        x = Conv1D::new(128, 7).strides(3).activation("relu").named(name).apply(&x);
    }
    let x = GlobalMaxPooling1D::new().named("max").apply(&x);
    let x = Dense::new(128).activation("relu").named("dense").apply(&x);
    Model::with_name("textcnn", &tokens, Dense::new(classes).named("logits").apply(&x))
}
