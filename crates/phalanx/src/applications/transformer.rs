//! Transformers: the block that all share, GPT-2, the vision transformer, and a small text classifier.

use crate::error::{Error, Result};
use crate::initializers::Initializer;
use crate::layer::LayerExt;
use crate::layers::{
    Add, Concatenate, Conv2D, Cropping1D, Dense, Dropout, Embedding, Flatten,
    GlobalAveragePooling1D, LayerNormalization, MultiHeadAttention, Reshape, ReversibleEmbedding,
};
use crate::model::{Apply, Input, Model, Symbol};
use crate::ops;
use serde_json::json;

/// A block that normalises before attention and before its two dense layers, and adds both to its input.
#[derive(Clone, Copy)]
struct Block {
    width: usize,
    heads: usize,
    /// Units of the first dense layer.
    units: usize,
    causal: bool,
    epsilon: f64,
    dropout: f64,
    /// Whether GELU is approximated by a hyperbolic tangent.
    approximate: bool,
}

impl Block {
    fn build(self, x: &Symbol, name: &str) -> Result<Symbol> {
        let part = |part: &str| format!("{name}_{part}");
        let norm = || LayerNormalization::new().epsilon(self.epsilon);
        let y = norm().named(&part("norm_1")).apply(x);
        let attention = MultiHeadAttention::new(self.heads, self.width / self.heads);
        let attention = attention.dropout(self.dropout).named(&part("attention"));
        let y = match self.causal {
            true => attention.apply_with([&y, &y], [("use_causal_mask", true.into())]),
            false => attention.apply([&y, &y]),
        };
        let x = Add::new().named(&part("add_1")).apply([x, &y]);
        let y = norm().named(&part("norm_2")).apply(&x);
        let y = Dense::new(self.units).named(&part("dense_1")).apply(&y);
        let y = gelu(&y, self.approximate)?;
        let mut y = Dense::new(self.width).named(&part("dense_2")).apply(&y);
        if self.dropout > 0.0 {
            y = Dropout::new(self.dropout).named(&part("dropout")).apply(&y);
        }
        Ok(Add::new().named(&part("add_2")).apply([&x, &y]))
    }
}

fn gelu(x: &Symbol, approximate: bool) -> Result<Symbol> {
    ops::call("nn.Gelu", [x.into()], json!({ "approximate": approximate }))
}

/// The positions 0, 1, … of a sequence, with the shape of `tokens`.
fn positions(tokens: &Symbol) -> Result<Symbol> {
    let ones = ops::call("numpy.OnesLike", [tokens.into()], json!({}))?;
    Ok(ops::call("numpy.Cumsum", [(&ones).into()], json!({ "axis": 1 }))? - 1.0)
}

/// Fails unless the heads divide the width and no size is zero.
fn check(owner: &str, width: usize, heads: usize, sizes: &[(&str, usize)]) -> Result<()> {
    if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
        return Err(Error::argument(owner, *name, "1 or more", 0));
    }
    if heads == 0 || width == 0 || !width.is_multiple_of(heads) {
        let expected = format!("a divisor of the width, {width}");
        return Err(Error::argument(owner, "heads", &expected, heads));
    }
    Ok(())
}

/// GPT-2 (Radford et al. 2019): a language model that predicts every token from those before it. The default is the
/// network with 124 million parameters.
///
/// The input are `length` tokens, the output the logits of the token after each. The table of tokens is also the last
/// layer's kernel.
///
/// ```
/// use phalanx::applications::Gpt2;
///
/// assert_eq!(Gpt2::default().parameters(), 124_439_808);
/// let small = Gpt2 { vocabulary: 100, length: 16, width: 32, heads: 4, layers: 2, ..Gpt2::default() };
/// let model = small.build()?;
/// assert_eq!(model.output_shapes()[0].to_string(), "(None, 16, 100)");
/// assert_eq!(model.count_params(), small.parameters());
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpt2 {
    /// The number of tokens.
    pub vocabulary: usize,
    /// The length of a sequence.
    pub length: usize,
    /// Numbers per token.
    pub width: usize,
    /// Attention heads of a block.
    pub heads: usize,
    /// Blocks.
    pub layers: usize,
    /// The fraction of the numbers to drop in training; none by default.
    pub dropout: f64,
}

impl Default for Gpt2 {
    fn default() -> Gpt2 {
        Gpt2 { vocabulary: 50257, length: 1024, width: 768, heads: 12, layers: 12, dropout: 0.0 }
    }
}

impl Gpt2 {
    /// The number of parameters.
    pub fn parameters(&self) -> usize {
        let &Gpt2 { vocabulary, length, width, layers, .. } = self;
        (vocabulary + length) * width + layers * (12 * width + 13) * width + 2 * width
    }

    /// Builds the model.
    ///
    /// # Errors
    /// Sizes of zero, or heads that do not divide the width.
    pub fn build(&self) -> Result<Model> {
        let &Gpt2 { vocabulary, length, width, heads, layers, dropout } = self;
        let sizes = [("vocabulary", vocabulary), ("length", length), ("layers", layers)];
        check("gpt2", width, heads, &sizes)?;
        let normal = || Initializer::random_normal(0.0, 0.02);
        let tokens = Input::new([length]).integers().named("tokens").symbol();
        let table = ReversibleEmbedding::new(vocabulary, width).embeddings_initializer(normal());
        let table = table.named("token_embedding");
        let place = Embedding::new(length, width).embeddings_initializer(normal());
        let place = place.named("position_embedding").apply(positions(&tokens)?);
        let mut x = Add::new().named("embeddings").apply([table.apply(&tokens), place]);
        let block = Block {
            width,
            heads,
            units: 4 * width,
            causal: true,
            epsilon: 1e-5,
            dropout,
            approximate: true,
        };
        for layer in 0..layers {
            x = block.build(&x, &format!("block_{layer}"))?;
        }
        let x = LayerNormalization::new().epsilon(1e-5).named("norm").apply(&x);
        let logits = table.apply_with(&x, [("reverse", true.into())]);
        Model::with_name("gpt2", &tokens, &logits)
    }
}

/// A vision transformer (Dosovitskiy et al. 2020): images become a sequence of patches.
///
/// The default is ViT-B/16: a class token before the patches, whose result is classified. [`small`](Self::small) is
/// the network of Keras' example for small datasets: all results are classified, by a perceptron.
///
/// ```
/// use phalanx::applications::VisionTransformer;
///
/// let vit = VisionTransformer { classes: 10, ..VisionTransformer::small() };
/// assert_eq!(vit.build()?.output_shapes(), [[10]]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct VisionTransformer {
    /// Height, width and channels of an image.
    pub image: [usize; 3],
    /// The side of a patch, which must divide those of the image.
    pub patch: usize,
    /// Numbers per patch.
    pub width: usize,
    /// Attention heads of a block.
    pub heads: usize,
    /// Blocks.
    pub layers: usize,
    /// Units of a block's first dense layer.
    pub units: usize,
    /// Units of the dense layers before the last, on all patches. If empty, a class token is classified.
    pub head: Vec<usize>,
    /// The fraction of the numbers to drop in training.
    pub dropout: f64,
    /// The number of classes.
    pub classes: usize,
}

impl Default for VisionTransformer {
    fn default() -> VisionTransformer {
        VisionTransformer {
            image: [224, 224, 3],
            patch: 16,
            width: 768,
            heads: 12,
            layers: 12,
            units: 3072,
            head: vec![],
            dropout: 0.0,
            classes: 1000,
        }
    }
}

impl VisionTransformer {
    /// The network of Keras' example for CIFAR-10: images of 72x72 in 144 patches.
    pub fn small() -> VisionTransformer {
        VisionTransformer {
            image: [72, 72, 3],
            patch: 6,
            width: 64,
            heads: 4,
            layers: 8,
            units: 128,
            head: vec![2048, 1024],
            dropout: 0.0,
            classes: 10,
        }
    }

    /// Builds the model, whose outputs are logits.
    ///
    /// # Errors
    /// Sizes of zero, heads that do not divide the width, or patches that do not divide the image.
    pub fn build(&self) -> Result<Model> {
        let &VisionTransformer { image, patch, width, heads, units, classes, dropout, .. } = self;
        let sizes = [("patch", patch), ("units", units), ("classes", classes)];
        check("vit", width, heads, &sizes)?;
        let [rows, columns, _] = image;
        if rows == 0 || columns == 0 || rows % patch != 0 || columns % patch != 0 {
            let expected = format!("sides that are multiples of {patch}");
            return Err(Error::argument("vit", "image", &expected, format!("{image:?}")));
        }
        let mut length = (rows / patch) * (columns / patch);
        let inputs = Input::new(image).named("images").symbol();
        let x = Conv2D::new(width, patch).strides(patch).named("patches").apply(&inputs);
        let mut x = Reshape::new([length as i64, width as i64]).named("sequence").apply(&x);
        if self.head.is_empty() {
            let first = ops::call("numpy.Mean", [(&x).into()], json!({ "axis": [1, 2] }))?;
            let zero = ops::call("numpy.ZerosLike", [(&first).into()], json!({}))?;
            let token = Embedding::new(1, width).named("class_token").apply(&zero);
            let token = Reshape::new([1, width as i64]).named("class_sequence").apply(&token);
            x = Concatenate::new().axis(1).named("with_class").apply([&token, &x]);
            length += 1;
        }
        let steps = ops::call("numpy.Mean", [(&x).into()], json!({ "axis": 2 }))?;
        let place = Embedding::new(length, width).named("position_embedding");
        let place = place.apply(positions(&steps)?);
        x = Add::new().named("embeddings").apply([&x, &place]);
        let epsilon = 1e-6;
        let block =
            Block { width, heads, units, causal: false, epsilon, dropout, approximate: false };
        for layer in 0..self.layers {
            x = block.build(&x, &format!("block_{layer}"))?;
        }
        x = LayerNormalization::new().epsilon(epsilon).named("norm").apply(&x);
        if self.head.is_empty() {
            x = Cropping1D::new((0, length - 1)).named("class_result").apply(&x);
        }
        x = Flatten::new().named("flatten").apply(&x);
        for (i, units) in self.head.iter().enumerate() {
            let dense = Dense::new(*units).activation("gelu");
            x = dense.named(&format!("head_{}", i + 1)).apply(&x);
        }
        let logits = Dense::new(classes).named("logits").apply(&x);
        Model::with_name("vit", &inputs, &logits)
    }
}

/// A text classifier of one transformer block: `length` tokens of a vocabulary become logits of `classes`.
///
/// # Errors
/// Sizes of zero.
pub fn text_transformer(vocabulary: usize, length: usize, classes: usize) -> Result<Model> {
    let (width, heads) = (32, 2);
    let sizes = [("vocabulary", vocabulary), ("length", length), ("classes", classes)];
    check("transformer", width, heads, &sizes)?;
    let tokens = Input::new([length]).integers().named("tokens").symbol();
    let words = Embedding::new(vocabulary, width).named("token_embedding").apply(&tokens);
    let place = Embedding::new(length, width).named("position_embedding");
    let place = place.apply(positions(&tokens)?);
    let x = Add::new().named("embeddings").apply([&words, &place]);
    let block = Block {
        width,
        heads,
        units: width,
        causal: false,
        epsilon: 1e-5,
        dropout: 0.0,
        approximate: true,
    };
    let x = block.build(&x, "block")?;
    let x = GlobalAveragePooling1D::new().named("mean").apply(&x);
    let x = Dense::new(20).activation("relu").named("dense").apply(&x);
    Model::with_name("transformer", &tokens, Dense::new(classes).named("logits").apply(&x))
}
