//! Errors in the definition of a model, all found when it is built or compiled.

use super::errors::check;
use super::{classifier, one_thread};
use phalanx::prelude::*;

/// A model of one layer.
fn on<const N: usize>(shape: [usize; N], layer: impl Layer) -> Result<()> {
    Sequential::new().add(Input::new(shape)).add(layer).build().map(|_| ())
}

/// A model of one layer that takes several inputs.
fn merge(shapes: &[&[usize]], layer: impl Layer) -> Result<()> {
    let inputs: Vec<Symbol> = shapes.iter().map(|s| Input::new(*s).symbol()).collect();
    let y = layer.apply(&inputs[..]);
    Model::new(&inputs[..], &y).map(|_| ())
}

#[test]
fn windows_are_checked_when_the_model_is_built() {
    check(&[
        (
            || on([8, 8, 3], Conv2D::new(0, 3)),
            "layer 'conv2d': filters: expected 1 or more, received 0",
        ),
        (
            || on([8, 8, 3], Conv2D::new(4, 0)),
            "layer 'conv2d': kernel_size: expected 1 or more, received (0, 0)",
        ),
        (
            || on([8, 8, 3], Conv2D::new(4, 3).strides(0)),
            "layer 'conv2d': strides: expected 1 or more, received (0, 0)",
        ),
        (
            || on([8, 8, 3], Conv2D::new(4, 3).groups(2)),
            "layer 'conv2d': groups: expected a divisor of the input's channels, 3, received 2",
        ),
        (
            || on([8, 8, 3], Conv2D::new(4, 9)),
            "layer 'conv2d': kernel_size: expected a window inside the input's 8x8, received (9, 9)",
        ),
        (
            || on([784], Conv2D::new(4, 3)),
            "layer 'conv2d': input: expected shape (batch, height, width, channels), received (None, 784)",
        ),
        (|| on([28, 28], Conv2D::new(4, 3)), "received (None, 28, 28)"),
        (
            || on([8, 8, 3], MaxPooling2D::new(0)),
            "layer 'max_pooling2d': pool_size: expected 1 or more, received (0, 0)",
        ),
        (
            || on([4], GlobalAveragePooling2D::new()),
            "layer 'global_average_pooling2d': input: expected shape (batch, height, width, channels)",
        ),
        (|| on([8, 8, 3], Cropping2D::new(4)), "layer 'cropping2d': cropping"),
        (|| on([8, 8, 3], Cropping2D::new(usize::MAX)), "layer 'cropping2d': cropping"),
        (|| on([8, 8, 3], UpSampling2D::new(0)), "layer 'up_sampling2d': size"),
    ]);
}

#[test]
fn inputs_of_merges_are_checked_when_the_model_is_built() {
    check(&[
        (|| merge(&[&[4], &[4]], Dense::new(1)), "layer 'dense': inputs: expected 1, received 2"),
        (
            || merge(&[&[4, 2], &[3, 2]], Concatenate::new()),
            "layer 'concatenate': inputs to concatenate: expected equal shapes except on the axis joined, received (None, 4, 2), (None, 3, 2)",
        ),
        (|| merge(&[&[4], &[4]], Concatenate::new().axis(0)), "layer 'concatenate': axis"),
        (|| merge(&[&[4], &[3]], Add::new()), "layer 'add': "),
        (|| merge(&[&[4], &[3]], Add::new()), "(None, 4) and (None, 3)"),
        (
            || merge(&[&[4], &[4], &[4]], Subtract::new()),
            "layer 'subtract': inputs: expected 2, received 3",
        ),
    ]);
}

#[test]
fn sizes_and_shapes_are_checked_when_the_model_is_built() {
    check(&[
        (|| on([4], Dense::new(0)), "layer 'dense': units: expected 1 or more, received 0"),
        (
            || on([], Dense::new(1)),
            "layer 'dense': input: expected shape (batch, .., features), received (None,)",
        ),
        (|| on([4], Dropout::new(-0.1)), "layer 'dropout': rate: expected"),
        (|| on([4], Dropout::new(f64::NAN)), "received NaN"),
        (
            || on([4], BatchNormalization::new().axis(2)),
            "layer 'batch_normalization': axis: expected an axis of (None, 4) other than the batch, received 2",
        ),
        (|| on([4], BatchNormalization::new().axis(0)), "received 0"),
        (|| on([4], BatchNormalization::new().axis(i64::MIN)), "received -9223372036854775808"),
        (|| on([4], LayerNormalization::new().axis(7)), "layer 'layer_normalization': axis"),
        (
            || on([6], Reshape::new([-1, -1])),
            "layer 'reshape': target_shape: expected a shape of 6 elements as in (None, 6), received [-1, -1]",
        ),
        (|| on([6], Reshape::new([4])), "received [4]"),
        (|| on([6], Reshape::new([-2, 3])), "received [-2, 3]"),
        (|| on([6], Reshape::new([i64::MAX, i64::MAX, 2])), "layer 'reshape': target_shape"),
        (|| on([2, 3], Permute::new([1])), "layer 'permute': dims"),
        (|| on([2, 3], Permute::new([0, 1])), "layer 'permute': dims"),
        (
            || on([4], Embedding::new(0, 3)),
            "layer 'embedding': input_dim: expected 1 or more, received 0",
        ),
        (
            || on([0], Dense::new(1)),
            "model 'sequential': input shape: expected sizes above zero, received (None, 0)",
        ),
    ]);
}

#[test]
fn unknown_names_come_with_a_suggestion() {
    fn compile(optimizer: &str, loss: &str, metric: &str) -> Result<()> {
        let compile = Compile::new(optimizer).loss(loss).metrics([metric]);
        classifier().compile(compile.strategy(one_thread()))
    }
    check(&[
        (
            || on([4], Dense::new(1).activation("rellu")),
            "unknown activation 'rellu'; did you mean 'relu'? known: ",
        ),
        (
            || on([4], Dense::new(1).kernel_initializer("he_norm")),
            "unknown initializer 'he_norm'; did you mean 'he_normal'?",
        ),
        (|| on([4], Dense::new(1).kernel_regularizer("l3")), "unknown regularizer 'l3'"),
        (
            || on([4], Dense::new(1).kernel_constraint("max_form")),
            "unknown constraint 'max_form'; did you mean 'max_norm'?",
        ),
        (
            || on([8, 8, 1], Conv2D::new(1, 3).padding("sam")),
            "unknown padding 'sam'; did you mean 'same'?",
        ),
        (|| compile("adm", "mse", "mae"), "unknown optimizer 'adm'; did you mean 'adam'?"),
        (
            || compile("adam", "sparse_crossentropy", "mae"),
            "unknown loss 'sparse_crossentropy'; did you mean 'sparse_categorical_crossentropy'?",
        ),
        (
            || compile("adam", "mse", "acuracy"),
            "unknown metric 'acuracy'; did you mean 'accuracy'?",
        ),
        (|| classifier().layer("dens").map(|_| ()), "unknown layer 'dens'; did you mean 'dense'?"),
        (|| datasets::load("minst").map(|_| ()), "unknown dataset 'minst'; did you mean 'mnist'?"),
    ]);
}

#[test]
fn the_graph_of_a_model_is_checked() {
    check(&[
        (
            || Sequential::new().build().map(|_| ()),
            "model 'sequential': layers: expected at least one, received none",
        ),
        (
            || Sequential::new().add(Dense::new(1)).build().map(|_| ()),
            "model 'sequential': first element: expected Input::new(shape), received a layer",
        ),
        (
            || Sequential::new().add(Input::new([1])).add(Input::new([1])).build().map(|_| ()),
            "model 'sequential': Input: expected one, at the start, received another one further down",
        ),
        (
            || {
                let x = Input::new([4]).symbol();
                let y = Dense::new(1).named("a").apply(Dense::new(1).named("a").apply(&x));
                Model::new(&x, &y).map(|_| ())
            },
            "model 'functional': layer names: expected each once, received a",
        ),
        (
            || {
                let (x, z) = (Input::new([4]).symbol(), Input::new([2]).named("z").symbol());
                Model::new(&x, Concatenate::new().apply([&x, &z])).map(|_| ())
            },
            "model 'functional': inputs: expected every Input in use, received outputs that also depend on an Input 'z' (None, 2)",
        ),
        (
            || {
                let x = Input::new([4]).symbol();
                Model::new([&x, &x], Dense::new(1).apply(&x)).map(|_| ())
            },
            "model 'functional': inputs: expected each Input once, received input 1 twice",
        ),
        (
            || {
                let x = Input::new([4]).symbol();
                let y = Dense::new(2).apply(&x);
                Model::new(&y, Dense::new(1).apply(&y)).map(|_| ())
            },
            "model 'functional': inputs: expected symbols of Input, received the output of a layer",
        ),
        (
            || {
                let x = Input::new([4]).symbol();
                Model::new(&x, Vec::new()).map(|_| ())
            },
            "model 'functional': inputs and outputs: expected at least one each, received none",
        ),
        (
            || {
                let layer = Dense::new(2).named("shared");
                let (x, z) = (Input::new([4]).symbol(), Input::new([5]).symbol());
                let y = Add::new().apply([layer.apply(&x), layer.apply(&z)]);
                Model::new([&x, &z], &y).map(|_| ())
            },
            "layer 'shared': kernel: expected the shape it was built with, [4, 2], received [5, 2]",
        ),
        (
            || {
                let inner = classifier();
                let x = Input::new([5]).symbol();
                Model::new(&x, inner.apply(&x)).map(|_| ())
            },
            "layer 'sequential/dense': kernel: expected the shape it was built with, [4, 8], received [5, 8]",
        ),
        (
            || {
                let inner = classifier();
                let x = Input::new([4]).symbol();
                Model::new(&x, inner.apply([&x, &x])).map(|_| ())
            },
            "model 'sequential': inputs: expected 1, received 2",
        ),
    ]);
}

fn compile(layer: impl Layer, shape: Vec<usize>) -> Result<()> {
    let mut model = Sequential::new().add(Input::new(shape)).add(layer).build()?;
    model.compile(Compile::new("sgd").loss("mse").strategy(one_thread()))
}

#[test]
fn impossible_devices_are_refused() {
    check(&[
        (
            || MirroredStrategy::cpus(0).map(|_| ()),
            "MirroredStrategy: devices: expected at least one device, received none",
        ),
        (|| MirroredStrategy::cpus(usize::MAX).map(|_| ()), "MirroredStrategy: devices: expected"),
        (
            || {
                let strategy = MirroredStrategy::cpus(2)?.threads(usize::MAX);
                classifier().compile(Compile::new("sgd").loss("mse").strategy(strategy))
            },
            "MirroredStrategy: threads: expected",
        ),
        (
            || MirroredStrategy::with_devices(["gpu:99"]).map(|_| ()),
            "MirroredStrategy: devices: expected a device of this machine, received gpu:99",
        ),
        (
            || MirroredStrategy::with_devices(["tpu"]).map(|_| ()),
            "device: name: expected cpu:N, gpu:N or gpu:N/PART, received 'tpu'",
        ),
    ]);
}

#[test]
fn steps_too_large_for_any_machine_are_refused() {
    check(&[
        (|| compile(Dense::new(1 << 20), vec![1 << 20, 1 << 20]), "out of memory: "),
        (
            || compile(Dense::new(10), vec![1 << 40]),
            "out of memory: 87960930222160 bytes for 2 copies of the weights",
        ),
        (
            || {
                let mut model = classifier();
                model.compile(Compile::new("sgd").loss("mse").strategy(one_thread()))?;
                model.program(StepKind::Train, usize::MAX).map(|_| ())
            },
            "program 'train': expected activations that can be addressed, received a batch of",
        ),
        (
            || {
                // It can be planned but needs more memory than there is.
                let x = Input::new([64, 64, 1]).symbol();
                let y = UpSampling2D::new(1 << 12).apply(&x);
                let model = Model::new(&x, GlobalAveragePooling2D::new().apply(&y))?;
                model.predict(Tensor::zeros([1, 64, 64, 1])).map(|_| ())
            },
            "out of memory: ",
        ),
    ]);
}

#[test]
fn models_too_large_for_any_machine_are_refused() {
    check(&[
        (
            || on([1; 17], Flatten::new()),
            "layer 'input_0': axes: expected at most 16, received 17, (None, 1, 1",
        ),
        (|| on([1], Reshape::new([1; 17])), "layer 'reshape': axes: expected at most 16"),
        (
            || {
                let x = Input::new([1; 16]).integers().symbol();
                Model::new(&x, Embedding::new(5, 2).apply(&x)).map(|_| ())
            },
            "layer 'embedding': axes: expected at most 16",
        ),
        (
            || on([4], Dense::new(usize::MAX)),
            "layer 'dense': kernel: expected a shape that fits in memory",
        ),
        (|| on([usize::MAX], Dense::new(2)), "layer 'input_0': size: expected at most"),
        (|| on([usize::MAX, usize::MAX], Flatten::new()), "layer 'input_0': size"),
        (|| on([1 << 24, 1 << 24], Dense::new(2)), "layer 'input_0': size"),
        (
            || on([1 << 30], Dense::new(1 << 30)),
            "layer 'dense': kernel: expected a shape that fits in memory",
        ),
        (
            || merge(&[&[1 << 24, 1], &[1, 1 << 25]], Add::new()),
            "layer 'add': size: expected at most",
        ),
        (
            || merge(&[&[1 << 40, 1], &[1, 1 << 40]], Add::new()),
            "layer 'add': size: expected at most",
        ),
        (|| merge(&[&[1 << 40, 1], &[1, 1 << 40]], Concatenate::new()), "layer 'concatenate'"),
        (|| on([8, 8, 1], ZeroPadding2D::new(usize::MAX)), "layer 'zero_padding2d'"),
        (|| on([8, 8, 1], UpSampling2D::new(usize::MAX)), "layer 'up_sampling2d'"),
        (|| on([8, 8, 1], Conv2D::new(1, usize::MAX)), "layer 'conv2d': kernel_size"),
        (|| on([8, 8, 1], Conv2D::new(usize::MAX, 1)), "layer 'conv2d'"),
        (
            || on([8, 8, 1], Conv2D::new(1, 3).padding("same").strides(usize::MAX)),
            "layer 'conv2d': strides",
        ),
        (|| on([1], Embedding::new(usize::MAX, usize::MAX)), "layer 'embedding'"),
    ]);
}
