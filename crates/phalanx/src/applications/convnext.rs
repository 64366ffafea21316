//! ConvNeXt (Liu et al. 2022).

use super::application::{Application, Features, Top};
use crate::error::Result;
use crate::layer::{LayerExt, LayerHandle};
use crate::layers::{
    Activation, Conv2D, Dense, GlobalAveragePooling2D, LayerNormalization, LayerScale,
    Normalization,
};
use crate::model::{Apply, Input, Sequential, Symbol};

/// ImageNet's mean and standard deviation of the channels, of pixels from 0 to 1.
const MEAN: [f64; 3] = [0.485, 0.456, 0.406];
const STDDEV: [f64; 3] = [0.229, 0.224, 0.225];

/// The blocks and the channels of the four stages.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConvNeXt {
    pub depths: [usize; 4],
    pub widths: [usize; 4],
}

fn norm() -> LayerNormalization {
    LayerNormalization::new().epsilon(1e-6)
}

fn block(x: &Symbol, width: usize, name: &str) -> Symbol {
    let part = |part: &str| format!("{name}_{part}");
    let conv = Conv2D::new(width, 7).padding("same").groups(width);
    let y = conv.named(&part("depthwise_conv")).apply(x);
    let y = norm().named(&part("layernorm")).apply(&y);
    let y = Dense::new(4 * width).named(&part("pointwise_conv_1")).apply(&y);
    let y = Activation::new("gelu").named(&part("gelu")).apply(&y);
    let y = Dense::new(width).named(&part("pointwise_conv_2")).apply(&y);
    let y = LayerScale::new(1e-6, width).named(&part("layer_scale")).apply(&y);
    let y = Activation::new("linear").named(&part("identity")).apply(&y);
    x + y
}

/// A model of two layers. Keras names the inputs of such models in order.
fn pair(f: &Features, index: usize, name: &str, layers: [LayerHandle; 2]) -> Result<Symbol> {
    let input = Input::new([f.sides[0], f.sides[1], f.channels]);
    let [first, second] = layers;
    let model = Sequential::new()
        .named(name)
        .add(input.named(&format!("input_layer_{}", index + 1)))
        .add(first)
        .add(second)
        .build()?;
    Ok(model.apply(&f.x))
}

pub(super) fn build(sizes: ConvNeXt, app: &Application, mut f: Features) -> Result<Symbol> {
    let name = app.keras_name();
    if f.channels == 3 {
        let norm = Normalization::new().axis([-1]).mean(MEAN.map(|m| m * 255.0).to_vec());
        let norm = norm.variance(STDDEV.map(|s| (s * 255.0) * (s * 255.0)).to_vec());
        f.x = norm.named(&format!("{name}_prestem_normalization")).apply(&f.x);
    }
    for (stage, (depth, width)) in sizes.depths.into_iter().zip(sizes.widths).enumerate() {
        f.x = match stage.checked_sub(1) {
            None => {
                let conv = Conv2D::new(width, 4).strides(4).named(&format!("{name}_stem_conv"));
                let norm = norm().named(&format!("{name}_stem_layernorm"));
                pair(&f, 0, &format!("{name}_stem"), [conv, norm])?
            }
            Some(i) => {
                let norm = norm().named(&format!("{name}_downsampling_layernorm_{i}"));
                let conv = Conv2D::new(width, 2).strides(2);
                let conv = conv.named(&format!("{name}_downsampling_conv_{i}"));
                pair(&f, stage, &format!("{name}_downsampling_block_{i}"), [norm, conv])?
            }
        };
        let divisor = if stage == 0 { 4 } else { 2 };
        f.sides = f.sides.map(|side| side / divisor);
        f.channels = width;
        for index in 0..depth {
            f.x = block(&f.x, width, &format!("{name}_stage_{stage}_block_{index}"));
        }
    }
    if !app.include_top {
        return Ok(norm().apply(app.finish(&f.x, &Top::default())));
    }
    let x = GlobalAveragePooling2D::new().named(&format!("{name}_head_gap")).apply(&f.x);
    let x = norm().named(&format!("{name}_head_layernorm")).apply(&x);
    let top = Dense::new(app.classes).activation(app.classifier_activation.clone());
    Ok(top.named(&format!("{name}_head_dense")).apply(&x))
}
