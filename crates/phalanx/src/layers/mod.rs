//! The layers, with Keras' names, one per file, and their registry.
//!
//! A layer is its config: a plain struct whose builder methods are Keras' arguments and whose serde form is
//! Keras' config. To add a layer, write its file, declare its module and add a row to the table below.

pub(crate) mod activated;
mod activation;
mod activity_regularization;
mod adaptive_pooling;
mod advanced_activations;
mod applications;
mod attention;
mod audio;
mod batch_normalization;
mod concatenate;
mod conv;
mod conv_transpose;
mod cropping;
mod dense;
mod depthwise_conv;
mod dot;
mod dropout;
mod embedding;
mod flatten;
mod global_pooling;
mod group_normalization;
mod identity;
mod image_preprocessing;
mod layer_normalization;
mod masking;
mod merge;
pub(crate) mod nested;
pub(crate) mod nested_model;
pub(crate) mod noise;
mod normalization;
mod numbers;
mod permute;
mod pipeline;
mod pooling;
mod preprocessing;
mod regularized;
mod repeat_vector;
mod rescaling;
mod reshape;
mod reversible_embedding;
mod rms_normalization;
mod rnn;
mod separable_conv;
pub(crate) mod spatial;
mod spectral_normalization;
pub(crate) mod support;
mod unit_normalization;
mod up_sampling;
pub(crate) mod window;
mod zero_padding;

pub use activated::Activated;
pub use attention::ScoreMode;
pub use audio::SpectrogramMode;
pub use dot::DotAxes;
pub(crate) use image_preprocessing::AxisSampling;
pub use image_preprocessing::{ElasticFillMode, Factor, Fill, FlipMode, Interpolation, Resampling};
pub use numbers::Numbers;
pub use preprocessing::hashing::MaskValue;
pub use preprocessing::{Ngrams, OovMethod, OutputMode, Salt, Split, Standardize};
pub use rnn::bidirectional::MergeMode;
pub use spatial::{ImageDataFormat, Padding, Pair, Sides, Sizes};

use crate::custom;
use crate::error::{Error, Result};
use crate::layer::Layer;
use crate::registry::{Class, Config, Registry, registry};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

registry! {
    /// Every layer, for one import.
    pub mod classes;
    const LAYERS: dyn Layer = read;

    activation { Activation required ["activation"] }
    activity_regularization { ActivityRegularization }
    adaptive_pooling {
        AdaptiveAveragePooling1D required ["output_size"],
        AdaptiveAveragePooling2D required ["output_size"],
        AdaptiveAveragePooling3D required ["output_size"],
        AdaptiveMaxPooling1D required ["output_size"],
        AdaptiveMaxPooling2D required ["output_size"],
        AdaptiveMaxPooling3D required ["output_size"],
    }
    advanced_activations { ELU, LeakyReLU, PReLU, ReLU, Softmax }
    applications {
        CustomScaleLayer required ["scale"],
        LayerScale required ["init_values", "projection_dim"],
        StochasticDepth required ["drop_path_rate"],
    }
    attention::dot_attention { AdditiveAttention, Attention }
    attention::einsum_dense { EinsumDense required ["equation", "output_shape"] }
    attention::grouped_query_attention {
        GroupQueryAttention required ["head_dim", "num_query_heads", "num_key_value_heads"],
    }
    attention::multi_head_attention { MultiHeadAttention required ["num_heads", "key_dim"] }
    audio::mel_spectrogram { MelSpectrogram }
    audio::stft_spectrogram { STFTSpectrogram }
    batch_normalization { BatchNormalization }
    concatenate { Concatenate }
    conv {
        Conv1D required ["filters", "kernel_size"],
        Conv2D required ["filters", "kernel_size"],
        Conv3D required ["filters", "kernel_size"],
    }
    conv_transpose {
        Conv1DTranspose required ["filters", "kernel_size"],
        Conv2DTranspose required ["filters", "kernel_size"],
        Conv3DTranspose required ["filters", "kernel_size"],
    }
    cropping { Cropping1D, Cropping2D, Cropping3D }
    dense { Dense required ["units"] }
    depthwise_conv {
        DepthwiseConv1D required ["kernel_size"],
        DepthwiseConv2D required ["kernel_size"],
    }
    dot { Dot required ["axes"] }
    dropout {
        Dropout required ["rate"],
        SpatialDropout1D required ["rate"],
        SpatialDropout2D required ["rate"],
        SpatialDropout3D required ["rate"],
    }
    embedding { Embedding required ["input_dim", "output_dim"] }
    flatten { Flatten }
    global_pooling {
        GlobalAveragePooling1D, GlobalAveragePooling2D, GlobalAveragePooling3D,
        GlobalMaxPooling1D, GlobalMaxPooling2D, GlobalMaxPooling3D,
    }
    group_normalization { GroupNormalization }
    identity { Identity }
    image_preprocessing::aug_mix { AugMix }
    image_preprocessing::center_crop { CenterCrop required ["height", "width"] }
    image_preprocessing::color {
        RandomColorDegeneration required ["factor"],
        RandomColorJitter,
        RandomGrayscale,
        RandomHue required ["factor"],
        RandomSaturation required ["factor"],
    }
    image_preprocessing::filter { RandomGaussianBlur, RandomSharpness required ["factor"] }
    image_preprocessing::histogram {
        ContrastLimitedAdaptiveHistogramEqualization, Equalization,
    }
    image_preprocessing::mixing { CutMix, MixUp }
    image_preprocessing::pointwise {
        AutoContrast,
        RandomBrightness required ["factor"],
        RandomInvert,
        RandomPosterization required ["factor"],
        Solarization,
    }
    image_preprocessing::rand_augment { RandAugment }
    image_preprocessing::random_contrast { RandomContrast required ["factor"] }
    image_preprocessing::random_crop { RandomCrop required ["height", "width"] }
    image_preprocessing::random_elastic_transform { RandomElasticTransform }
    image_preprocessing::random_erasing { RandomErasing }
    image_preprocessing::random_flip { RandomFlip }
    image_preprocessing::random_perspective { RandomPerspective }
    image_preprocessing::random_rotation { RandomRotation required ["factor"] }
    image_preprocessing::random_shear { RandomShear }
    image_preprocessing::random_translation {
        RandomTranslation required ["height_factor", "width_factor"],
    }
    image_preprocessing::random_zoom { RandomZoom required ["height_factor"] }
    image_preprocessing::resizing { Resizing required ["height", "width"] }
    layer_normalization { LayerNormalization }
    masking { Masking }
    merge { Add, Average, Maximum, Minimum, Multiply, Subtract }
    noise {
        AlphaDropout required ["rate"],
        GaussianDropout required ["rate"],
        GaussianNoise required ["stddev"],
    }
    normalization { Normalization }
    permute { Permute required ["dims"] }
    pipeline { Pipeline required ["layers"] }
    pooling {
        AveragePooling1D required ["pool_size"],
        AveragePooling2D required ["pool_size"],
        AveragePooling3D required ["pool_size"],
        MaxPooling1D, MaxPooling2D, MaxPooling3D,
    }
    preprocessing::category_encoding { CategoryEncoding required ["num_tokens"] }
    preprocessing::discretization { Discretization }
    preprocessing::feature_layers { TFDConcat required ["axis"], TFDIdentity }
    preprocessing::hashed_crossing { HashedCrossing required ["num_bins"] }
    preprocessing::hashing { Hashing required ["num_bins"] }
    preprocessing::integer_lookup { IntegerLookup }
    preprocessing::string_lookup { StringLookup }
    preprocessing::text_vectorization { TextVectorization }
    repeat_vector { RepeatVector required ["n"] }
    rescaling { Rescaling required ["scale"] }
    reshape { Reshape required ["target_shape"] }
    reversible_embedding { ReversibleEmbedding required ["input_dim", "output_dim"] }
    rnn::bidirectional { Bidirectional required ["layer"] }
    rnn::conv_lstm {
        ConvLSTM1D required ["filters", "kernel_size"],
        ConvLSTM2D required ["filters", "kernel_size"],
        ConvLSTM3D required ["filters", "kernel_size"],
    }
    rnn::gru { GRU required ["units"], GRUCell required ["units"] }
    rnn::lstm { LSTM required ["units"], LSTMCell required ["units"] }
    rnn::rnn { RNN required ["cell"], StackedRNNCells required ["cells"] }
    rnn::simple_rnn { SimpleRNN required ["units"], SimpleRNNCell required ["units"] }
    rnn::time_distributed { TimeDistributed required ["layer"] }
    rms_normalization { RMSNormalization }
    separable_conv {
        SeparableConv1D required ["filters", "kernel_size"],
        SeparableConv2D required ["filters", "kernel_size"],
    }
    spectral_normalization { SpectralNormalization required ["layer"] }
    unit_normalization { UnitNormalization }
    up_sampling { UpSampling1D, UpSampling2D, UpSampling3D }
    zero_padding { ZeroPadding1D, ZeroPadding2D, ZeroPadding3D }
}

const REGISTRY: Registry<dyn Layer> = Registry { kind: "layer", tables: &[LAYERS] };

/// The class names that [`from_config`] knows, in alphabetical order.
pub fn class_names() -> Vec<&'static str> {
    let mut names = REGISTRY.class_names();
    names.sort_unstable();
    names
}

/// Creates a layer from Keras' class name and config. `name`, `trainable` and `dtype` belong to the model and
/// are ignored.
///
/// ```
/// let config = serde_json::json!({ "name": "hidden", "units": 32, "activation": "relu" });
/// let config = config.as_object().unwrap().clone();
/// let layer = phalanx::layers::from_config("Dense", config).unwrap();
/// assert_eq!(layer.config()["units"], 32);
/// ```
///
/// # Errors
/// [`Error::Unknown`] for an unknown class, [`Error::Config`] for a key that is missing, unknown or has an
/// invalid value.
pub fn from_config(class_name: &str, mut config: Map<String, Value>) -> Result<Box<dyn Layer>> {
    for key in ["name", "trainable", "dtype"] {
        config.remove(key);
    }
    if let Some(custom) = custom::layer(class_name, &config) {
        return custom;
    }
    if class_name.contains('>') {
        return Err(custom::refuse("layer", class_name, None));
    }
    if class_name == "Lambda" {
        return Err(lambda());
    }
    if let Some(activated) = activated::read(class_name, &config) {
        return activated;
    }
    let known = || class_names().into_iter().map(String::from).collect();
    let class = REGISTRY.find(class_name, |class| class.name == class_name, known)?;
    drop_no_op_keys(&mut config);
    if let Some(key) = class.required.iter().find(|key| !config.contains_key(**key)) {
        return Err(Error::config(class_name, format!("missing key `{key}`")));
    }
    let read = (class.read)(class, &config);
    let Some(regularizer) = config.remove(regularized::KEY) else { return read };
    // Every layer of Keras has this option; few name it among their arguments.
    match (read, (class.read)(class, &config)) {
        (Err(_), Ok(layer)) => {
            let wrong = |e| Error::config(class_name, format!("{}: {e}", regularized::KEY));
            let regularizer = serde_json::from_value(regularizer).map_err(wrong)?;
            Ok(Box::new(regularized::Regularized::new(layer, regularizer)))
        }
        (read, _) => read,
    }
}

/// The error of a layer whose function is Python code.
fn lambda() -> Error {
    let expected = "a class: Python code in a file is never run. In Python, write the function as a class `Name` with \
                    @keras.saving.register_keras_serializable(package=\"my\") and save the model again; here, implement it \
                    and call phalanx::custom::register_layer::<Name>(\"my>Name\") before loading";
    Error::argument("layer", "class", expected, "'Lambda'")
}

/// Removes keys that some versions of Keras write and that have no effect at these values.
pub(crate) fn drop_no_op_keys(config: &mut Config) {
    let idle = [
        ("activity_regularizer", Value::Null),
        ("quantization_config", Value::Null),
        ("renorm", Value::Bool(false)),
        ("renorm_clipping", Value::Null),
    ];
    if config.get("renorm") == Some(&Value::Bool(false)) {
        config.remove("renorm_momentum");
    }
    for (key, value) in idle {
        if config.get(key) == Some(&value) {
            config.remove(key);
        }
    }
}

fn read<L: Layer + DeserializeOwned>(
    class: &Class<dyn Layer>,
    config: &Config,
) -> Result<Box<dyn Layer>> {
    Ok(Box::new(read_config::<L>(class.name, config)?))
}

/// Reads a config of a class, naming the key at fault.
pub(crate) fn read_config<L: DeserializeOwned>(class: &str, config: &Config) -> Result<L> {
    match L::deserialize(config) {
        Ok(layer) => Ok(layer),
        Err(e) => {
            let text = e.to_string();
            // The first invalid key determines the message, so it is the one whose removal changes the
            // message.
            let invalid_key = config.keys().find(|key| {
                let mut rest = config.clone();
                rest.remove(*key);
                L::deserialize(&rest).err().is_none_or(|e| e.to_string() != text)
            });
            match invalid_key.filter(|key| !text.contains(&format!("`{key}`"))) {
                Some(key) => Err(Error::config(class, format!("{key}: {text}"))),
                None => Err(Error::config(class, text)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regularizers::Regularizer;
    use serde_json::json;

    fn read(class_name: &str, config: Value) -> Result<Box<dyn Layer>> {
        from_config(class_name, config.as_object().unwrap().clone())
    }

    fn message(class_name: &str, config: Value) -> String {
        read(class_name, config).unwrap_err().to_string()
    }

    #[test]
    fn the_layer_in_the_documentation_is_this_one() {
        let guide = include_str!("../../../../docs/adding.md");
        assert!(guide.contains(include_str!("repeat_vector.rs")), "docs/adding.md differs");
    }

    #[test]
    fn a_wrong_config_is_refused_with_its_key() {
        assert_eq!(message("Dense", json!({})), "Dense: missing key `units`");
        let text = message("Dense", json!({ "units": "many" }));
        assert_eq!(text, "Dense: units: invalid type: string \"many\", expected usize");
        let text = message("Dense", json!({ "units": 3, "bias": true }));
        assert!(text.starts_with("Dense: unknown field `bias`, expected one of `units`"), "{text}");
        let text = message("Dense", json!({ "units": 3, "activation": "rela" }));
        assert!(text.starts_with("Dense: activation: unknown variant `rela`"), "{text}");
        let text = message("RandomFlip", json!({ "data_format": "channels_first" }));
        let expected = "unknown variant `channels_first`, expected `channels_last`";
        assert_eq!(text, format!("RandomFlip: data_format: {expected}"));
        let text = message("Conv2D", json!({ "filters": 3, "kernel_size": [1, 2, 3] }));
        assert_eq!(text, "Conv2D: kernel_size: expected a whole number or two of them");
        let l2 = json!({ "class_name": "L2", "config": { "l2": 0.1 } });
        for (class, mut config) in
            [("Conv2D", json!({ "filters": 3, "kernel_size": 3 })), ("Flatten", json!({}))]
        {
            config["activity_regularizer"] = l2.clone();
            let layer = read(class, config.clone()).unwrap();
            assert_eq!(layer.activity_penalty().unwrap(), Some(Regularizer::l2(0.1)));
            assert_eq!(layer.config()["activity_regularizer"]["config"], l2["config"]);
            config["activity_regularizer"] = json!("l3");
            assert!(message(class, config).contains("activity_regularizer: "));
        }
        let text = message("Dens", json!({}));
        assert!(text.starts_with("unknown layer 'Dens'; did you mean 'Dense'?"), "{text}");
    }

    #[test]
    fn no_op_keys_are_accepted_and_not_written() {
        let config = json!({ "units": 3, "quantization_config": null });
        assert!(!read("Dense", config).unwrap().config().contains_key("quantization_config"));
        let config = json!({ "renorm": false, "renorm_clipping": null, "renorm_momentum": 0.99 });
        assert!(!read("BatchNormalization", config).unwrap().config().contains_key("renorm"));
        let text = message("BatchNormalization", json!({ "renorm": true }));
        assert!(text.starts_with("BatchNormalization: unknown field `renorm`"), "{text}");
    }
}
