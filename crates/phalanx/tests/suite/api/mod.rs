//! The API from the perspective of a Keras user: `fit` and related calls, shared layers, and error messages.

mod build_errors;
mod data_errors;
mod errors;
mod fit;
mod generators;
mod indices;
mod models;
mod sharing;
mod submodels;
mod sweep;
mod threads;
mod training;
mod unsaved;

use phalanx::prelude::*;
use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// A short form of `Tensor::new` for tests.
pub fn tensor(dims: &[usize], values: impl Into<phalanx::Data>) -> Tensor {
    Tensor::new(dims, values).expect("the shape's elements")
}

/// Points around three centres, in four dimensions, and their class.
pub fn clouds(n: usize) -> (Tensor, Tensor) {
    let mut random = phalanx::Stream::new(3, 0, 7, 0);
    let labels: Vec<i32> = (0..n).map(|i| (i % 3) as i32).collect();
    let points = labels.iter().flat_map(|class| {
        (0..4).map(|axis| f32::from(u8::from(axis == *class))).collect::<Vec<f32>>()
    });
    let points: Vec<f32> = points.map(|x| x + random.unit() as f32 * 0.8 - 0.4).collect();
    (tensor(&[n, 4], points), tensor(&[n], labels))
}

/// A classifier of [`clouds`], not compiled.
pub fn classifier() -> Model {
    Sequential::new()
        .add(Input::new([4]))
        .add(Dense::new(8).activation("relu"))
        .add(Dense::new(3).activation("softmax"))
        .build()
        .unwrap()
}

/// A classifier of [`clouds`], ready to train.
pub fn compiled(optimizer: impl Optimizer + 'static) -> Model {
    let mut model = classifier();
    model
        .compile(
            Compile::new(optimizer)
                .loss("sparse_categorical_crossentropy")
                .metrics(["accuracy"])
                .strategy(one_thread()),
        )
        .unwrap();
    model
}

/// Small models are faster on one thread.
pub fn one_thread() -> MirroredStrategy {
    MirroredStrategy::cpus(1).unwrap().threads(1)
}

/// `y = w · x` with one weight, which starts at 2.
pub fn one_weight() -> Dense {
    Dense::new(1).use_bias(false).kernel_initializer(Initializer::constant(2.0))
}

/// The largest difference between two lists of tensors.
pub fn difference(a: &[Tensor], b: &[Tensor]) -> f32 {
    assert_eq!(a.len(), b.len());
    let pairs = a.iter().zip(b).flat_map(|(a, b)| {
        assert_eq!(a.dims(), b.dims());
        a.f32().unwrap().iter().zip(b.f32().unwrap())
    });
    pairs.fold(0.0, |worst, (a, b)| worst.max((a - b).abs()))
}

/// Records the text of every warning.
struct Listener(Arc<Mutex<Vec<String>>>);

struct MessageText<'a>(&'a mut String);

impl Visit for MessageText<'_> {
    fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
        write!(self.0, "{value:?}").unwrap();
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = String::new();
        event.record(&mut MessageText(&mut text));
        self.0.lock().unwrap().push(text);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The result of `work` and the warnings of its thread.
pub fn warnings<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
    let messages = Arc::new(Mutex::new(vec![]));
    let done = tracing::subscriber::with_default(Listener(messages.clone()), work);
    let messages = std::mem::take(&mut *messages.lock().unwrap());
    (done, messages)
}
