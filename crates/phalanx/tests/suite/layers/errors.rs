//! Refusals of layers and their messages.

use super::call;
use phalanx::layer::Layer;
use phalanx::layers::*;
use phalanx_graph::Type;

/// The error message of a layer on inputs of these shapes.
pub fn refusal(layer: impl Layer, shapes: &[&[usize]]) -> String {
    let types: Vec<Type> = shapes.iter().map(|dims| Type::rows(*dims)).collect();
    match call(&layer.into(), true, &types) {
        Ok(_) => panic!("was not refused"),
        Err(e) => e.to_string(),
    }
}

/// Compares error messages with what is expected.
fn check(cases: &[(String, &str)]) {
    for (received, expected) in cases {
        assert_eq!(received, expected);
    }
}

#[test]
fn refusals_of_windows_name_layer_argument_expected_and_received() {
    let image: &[usize] = &[8, 6, 4];
    check(&[
        (
            refusal(Conv2D::new(4, 3), &[&[10]]),
            "layer 'it': input: expected shape (batch, height, width, channels), received (None, 10)",
        ),
        (
            refusal(Conv2D::new(4, (9, 3)), &[image]),
            "layer 'it': kernel_size: expected a window inside the input's 8x6, received (9, 3)",
        ),
        (
            refusal(Conv2D::new(4, 3).strides((1, 0)), &[image]),
            "layer 'it': strides: expected 1 or more, received (1, 0)",
        ),
        (
            refusal(Conv2D::new(4, 3).groups(3), &[image]),
            "layer 'it': groups: expected a divisor of the input's channels, 4, received 3",
        ),
        (
            refusal(Conv2D::new(4, 3).strides(2).dilation_rate(2), &[image]),
            "layer 'it': strides: expected 1 if dilation_rate is not 1, \
             received (2, 2) with dilation_rate (2, 2)",
        ),
        (
            refusal(Conv1D::new(4, 9), &[&[8, 4]]),
            "layer 'it': kernel_size: expected a window inside the input's 8, received 9",
        ),
        (
            refusal(Conv3D::new(4, 3), &[image]),
            "layer 'it': input: expected shape (batch, depth, height, width, channels), \
             received (None, 8, 6, 4)",
        ),
        (
            refusal(MaxPooling1D::new(2).data_format("channels_first"), &[image]),
            "layer 'it': input: expected shape (batch, channels, steps), received (None, 8, 6, 4)",
        ),
        (
            refusal(Conv2DTranspose::new(4, 3).strides(2).output_padding(2), &[image]),
            "layer 'it': output_padding: expected less than the strides, (2, 2), received (2, 2)",
        ),
        (
            refusal(Conv1DTranspose::new(4, 2).padding("same").output_padding(0), &[&[1, 4]]),
            "layer 'it': output_padding: expected an output of 1 or more positions, received 0",
        ),
        (
            refusal(AdaptiveMaxPooling1D::new(1025), &[&[7, 4]]),
            "layer 'it': output_size: expected at most 1024 different windows along an axis of 7, \
             received 1025",
        ),
        (
            refusal(GroupNormalization::new().groups(3), &[image]),
            "layer 'it': groups: expected -1 or a divisor of the input's channels, 4, received 3",
        ),
        (
            refusal(PReLU::new().shared_axes(4), &[image]),
            "layer 'it': shared_axes: expected axes from 1 to 3, received 4",
        ),
        (
            refusal(MaxPooling2D::new(0), &[image]),
            "layer 'it': pool_size: expected 1 or more, received (0, 0)",
        ),
        (
            refusal(Cropping2D::new(3), &[image]),
            "layer 'it': cropping: expected less than the input's 8x6, received [[3, 3], [3, 3]]",
        ),
    ]);
}

#[test]
fn refusals_name_layer_argument_expected_and_received() {
    check(&[
        (refusal(Dense::new(0), &[&[3]]), "layer 'it': units: expected 1 or more, received 0"),
        (
            refusal(Dense::new(4), &[&[]]),
            "layer 'it': input: expected shape (batch, .., features), received (None,)",
        ),
        (refusal(Dense::new(4), &[&[3], &[3]]), "layer 'it': inputs: expected 1, received 2"),
        (
            refusal(Dropout::new(1.0), &[&[3]]),
            "layer 'it': rate: expected 0 or more and less than 1, received 1",
        ),
        (
            refusal(BatchNormalization::new().axis(0), &[&[3]]),
            "layer 'it': axis: expected an axis of (None, 3) other than the batch, received 0",
        ),
        (
            refusal(Reshape::new([5, -1]), &[&[12]]),
            "layer 'it': target_shape: expected a shape of 12 elements as in (None, 12), \
             received [5, -1]",
        ),
        (
            refusal(Permute::new([1, 3]), &[&[2, 2]]),
            "layer 'it': dims: expected each of 1 to 2 once for (None, 2, 2), received [1, 3]",
        ),
        (
            refusal(Concatenate::new(), &[&[2, 3], &[3, 3]]),
            "layer 'it': inputs to concatenate: expected equal shapes except on the axis joined, \
             received (None, 2, 3), (None, 3, 3)",
        ),
        (
            refusal(Add::new(), &[&[2], &[3]]),
            "layer 'it': inputs of add: expected shapes that broadcast together, \
             received (None, 2) and (None, 3)",
        ),
        (refusal(Subtract::new(), &[&[2]]), "layer 'it': inputs: expected 2, received 1"),
        (
            refusal(Embedding::new(0, 3), &[&[2]]),
            "layer 'it': input_dim: expected 1 or more, received 0",
        ),
        (
            refusal(Normalization::new().mean([1.0, 2.0]).variance([1.0, 1.0]), &[&[3]]),
            "layer 'it': mean: expected one number, or [3] of them for (None, 3), received [2]",
        ),
        (
            refusal(Dense::new(usize::MAX), &[&[3]]),
            &format!(
                "layer 'it': kernel: expected a shape that fits in memory, received [3, {}]",
                usize::MAX
            ),
        ),
    ]);
}

#[test]
fn unknown_names_are_kept_until_the_call() {
    let text = refusal(Dense::new(3).activation("rellu"), &[&[3]]);
    assert!(text.starts_with("unknown activation 'rellu'"), "{text}");
    assert!(text.contains("known: linear, relu, "), "{text}");
    let text = refusal(Conv2D::new(3, 3).padding("causal"), &[&[8, 8, 1]]);
    assert_eq!(text, "layer 'it': padding: expected valid or same, received causal");
    let text = refusal(Conv1D::new(3, 3).padding("equal"), &[&[8, 1]]);
    assert_eq!(text, "unknown padding 'equal'; known: valid, same, causal");
    let text = refusal(Dense::new(3).kernel_initializer("he"), &[&[3]]);
    assert!(text.starts_with("unknown initializer 'he'; did you mean 'he_uniform'?"), "{text}");
    let text = refusal(Dense::new(3).kernel_regularizer("l3"), &[&[3]]);
    assert!(text.starts_with("unknown regularizer 'l3'"), "{text}");
    assert!(text.ends_with("known: l1, l2, l1_l2, orthogonal_regularizer"), "{text}");
    let text = refusal(Dense::new(3).bias_constraint("nonnegative"), &[&[3]]);
    assert!(text.starts_with("unknown constraint 'nonnegative'"), "{text}");
}

#[test]
fn extreme_sizes_are_refused_and_do_not_panic() {
    let (most, image): (usize, &[usize]) = (usize::MAX, &[8, 6, 4]);
    refusal(Conv2D::new(most, 3), &[image]);
    refusal(Conv2D::new(3, most).padding("same"), &[image]);
    refusal(Conv2D::new(3, 3).dilation_rate(most), &[image]);
    refusal(DepthwiseConv2D::new(3).depth_multiplier(most), &[image]);
    refusal(UpSampling2D::new(most), &[image]);
    refusal(UpSampling1D::new(most), &[&[8, 4]]);
    refusal(UpSampling3D::new(most), &[&[2, 8, 6, 4]]);
    refusal(Conv2DTranspose::new(3, most), &[image]);
    refusal(Conv2DTranspose::new(most, 3), &[image]);
    refusal(Conv3DTranspose::new(3, 3).strides(1 << 24), &[&[1 << 20, 1 << 10, 1 << 10, 1]]);
    refusal(AdaptiveAveragePooling2D::new(most), &[image]);
    refusal(RepeatVector::new(most), &[&[4]]);
    refusal(ZeroPadding2D::new(most), &[image]);
    refusal(Cropping2D::new(most), &[image]);
    refusal(MaxPooling2D::new(2), &[&[0, 4, 1]]);
    refusal(Reshape::new([i64::MAX, i64::MAX]), &[image]);
    refusal(Reshape::new([-2, -1]), &[image]);
    refusal(Concatenate::new().axis(i64::MIN), &[image, image]);
    refusal(Softmax::new().axis(i64::MAX), &[image]);
    refusal(Rescaling::new(f64::NAN), &[image]);
    refusal(Embedding::new(most, most), &[&[3]]);
}
