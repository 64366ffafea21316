//! VGG16 and VGG19 (Simonyan and Zisserman 2014).

use super::application::{Application, Features, Top};
use crate::layer::LayerExt;
use crate::layers::{Conv2D, Dense, Flatten, MaxPooling2D};
use crate::model::{Apply, Symbol};

/// The filters of the five blocks.
const FILTERS: [usize; 5] = [64, 128, 256, 512, 512];

/// Blocks of `convolutions` each, with a pooling that halves the image.
pub(super) fn build(convolutions: [usize; 5], app: &Application, mut f: Features) -> Symbol {
    for (block, (filters, count)) in FILTERS.into_iter().zip(convolutions).enumerate() {
        let block = block + 1;
        for conv in 1..=count {
            let layer = Conv2D::new(filters, 3).activation("relu").padding("same");
            f.x = layer.named(&format!("block{block}_conv{conv}")).apply(&f.x);
        }
        f.x = MaxPooling2D::new(2).strides(2).named(&format!("block{block}_pool")).apply(&f.x);
    }
    if !app.include_top {
        return app.finish(&f.x, &Top::default());
    }
    let mut x = Flatten::new().named("flatten").apply(&f.x);
    for name in ["fc1", "fc2"] {
        x = Dense::new(4096).activation("relu").named(name).apply(&x);
    }
    app.predictions(&x, None)
}
