//! Two recurrent layers over a sequence, one forwards and one backwards, whose outputs are merged.

use super::options::{self, RnnResult, Sequence};
use super::{RecurrentLayer, read_recurrent};
use crate::custom::short_class;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::layers::nested::NestedLayer;
use crate::model::snake_case;
use crate::registry::Config;
use phalanx_graph::functions::layout::flip;
use phalanx_graph::ops::Binary;
use phalanx_graph::{NodeId, Op};
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::{Value, json};

/// How the outputs of both directions become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MergeMode {
    /// Concatenation along the features.
    Concat,
    /// Their sum.
    Sum,
    /// Their product.
    Mul,
    /// Their mean.
    Ave,
}

/// Runs a recurrent layer in both directions.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::{Bidirectional, LSTM};
///
/// let layer = Bidirectional::new(LSTM::new(16).return_sequences(true));
/// assert_eq!(layer.config()["merge_mode"], "concat");
/// ```
#[derive(Debug)]
pub struct Bidirectional {
    forward: Direction,
    backward: Direction,
    merge_mode: Option<MergeMode>,
}

#[derive(Debug)]
struct Direction {
    layer: Box<dyn RecurrentLayer>,
    name: String,
    trainable: bool,
}

impl Direction {
    fn parse(value: &Value) -> Result<Direction, String> {
        let NestedLayer { class, name, trainable, config } = NestedLayer::parse(value)?;
        match read_recurrent(&class, &config).map_err(|e| e.to_string())? {
            Some(layer) => Ok(Direction { layer, name, trainable }),
            None => Err(format!("expected a recurrent layer, received {class:?}")),
        }
    }

    fn to_value(&self) -> Value {
        NestedLayer::new(&*self.layer, &self.name, self.trainable).to_value()
    }

    /// Masked steps of a sequence are zero, as Keras has it.
    fn zero_masked_steps(&mut self) {
        let options = self.layer.options_mut();
        options.zero_output_for_mask = options.return_sequences;
    }

    fn run(
        &self,
        cx: &mut LayerContext<'_>,
        attribute: &str,
        sequence: &Sequence,
    ) -> Result<RnnResult> {
        let run = cx.in_sublayer(attribute, self.trainable, |cx| {
            options::run(cx, self.layer.options(), self.layer.cell(), sequence)
        })?;
        if let Some(regularizer) = self.layer.activity_penalty()? {
            let states = run.states.iter().filter(|_| self.layer.options().return_state);
            for output in std::iter::once(&run.output).chain(states) {
                cx.regularize_activity(&regularizer, *output)?;
            }
        }
        Ok(run)
    }
}

impl Bidirectional {
    /// Runs a layer forwards and a copy of it, with weights of its own, backwards.
    #[allow(private_bounds)]
    pub fn new(layer: impl RecurrentLayer) -> Bidirectional {
        let base = snake_case(short_class(layer.class_name()));
        let mut backward = layer.boxed();
        let options = backward.options_mut();
        options.go_backwards = !options.go_backwards;
        let direction = |layer, name: &str| {
            let mut direction =
                Direction { layer, name: format!("{name}_{base}"), trainable: true };
            direction.zero_masked_steps();
            direction
        };
        Bidirectional {
            forward: direction(layer.boxed(), "forward"),
            backward: direction(backward, "backward"),
            merge_mode: Some(MergeMode::Concat),
        }
    }

    /// How the outputs become one. `None` returns both.
    #[must_use]
    pub fn merge_mode(mut self, merge_mode: impl Into<Option<MergeMode>>) -> Bidirectional {
        self.merge_mode = merge_mode.into();
        self
    }

    /// Splits the initial states between the directions.
    fn sequences(&self, cx: &LayerContext<'_>, x: NodeId) -> Result<[Sequence; 2]> {
        let mut forward = options::initial_state(cx)?;
        if !forward.len().is_multiple_of(2) {
            let expected = "as many states for each direction";
            return Err(cx.argument("initial_state", expected, forward.len()));
        }
        let backward = forward.split_off(forward.len() / 2);
        let mask = cx.mask(0);
        Ok([forward, backward].map(|initial| Sequence::new(x, initial, mask)))
    }
}

impl Layer for Bidirectional {
    fn class_name(&self) -> &'static str {
        "Bidirectional"
    }

    fn config(&self) -> Config {
        let config = json!({
            "merge_mode": self.merge_mode, "layer": self.forward.to_value(),
            "backward_layer": self.backward.to_value(),
        });
        config.as_object().cloned().unwrap_or_default()
    }

    fn signature(&self) -> &'static [&'static str] {
        options::SIGNATURE
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let Some(x) = inputs.first().copied() else {
            return Err(cx.argument("inputs", "1 or more", 0));
        };
        let [forward, backward] = self.sequences(cx, x)?;
        let forward = self.forward.run(cx, "forward_layer", &forward)?;
        let mut backward = self.backward.run(cx, "backward_layer", &backward)?;
        let options = self.forward.layer.options();
        if options.return_sequences {
            backward.output = flip(cx.graph(), backward.output, 0)?;
        }
        let both = [forward.output, backward.output];
        let axis = cx.dims(both[0]).len() - 1;
        let g = cx.graph();
        let mut outputs = match self.merge_mode {
            None => both.to_vec(),
            Some(MergeMode::Concat) => vec![g.push(Op::Concat { axis }, &both)?],
            Some(MergeMode::Sum) => vec![g.add(both[0], both[1])?],
            Some(MergeMode::Mul) => vec![g.binary(Binary::Mul, both[0], both[1])?],
            Some(MergeMode::Ave) => {
                let sum = g.add(both[0], both[1])?;
                vec![g.scale(sum, 0.5)?]
            }
        };
        let merged = outputs.len();
        if options.return_state {
            outputs.extend(forward.states);
            outputs.extend(backward.states);
        }
        let mask = cx.mask(0).filter(|_| options.return_sequences);
        let mut masks = vec![None; outputs.len()];
        masks[..merged].fill(mask);
        Ok(Outputs::from(outputs).with_masks(masks))
    }
}

impl<'de> Deserialize<'de> for Bidirectional {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Bidirectional, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Keys {
            layer: Value,
            #[serde(default)]
            backward_layer: Value,
            #[serde(default = "concat")]
            merge_mode: Option<MergeMode>,
        }
        fn concat() -> Option<MergeMode> {
            Some(MergeMode::Concat)
        }
        let keys = Keys::deserialize(d)?;
        let parse = |name: &str, value: &Value| {
            Direction::parse(value).map_err(|e| de::Error::custom(format!("{name}: {e}")))
        };
        let mut forward = parse("layer", &keys.layer)?;
        let mut backward = match &keys.backward_layer {
            Value::Null => {
                let mut backward = parse("layer", &keys.layer)?;
                let options = backward.layer.options_mut();
                options.go_backwards = !options.go_backwards;
                backward.name = format!("backward_{}", forward.name.trim_start_matches("forward_"));
                backward
            }
            value => parse("backward_layer", value)?,
        };
        forward.zero_masked_steps();
        backward.zero_masked_steps();
        let (a, b) = (forward.layer.options(), backward.layer.options());
        if a.go_backwards == b.go_backwards
            || (a.return_sequences, a.return_state) != (b.return_sequences, b.return_state)
        {
            let expected = "opposite directions with equal return_sequences and return_state";
            return Err(de::Error::custom(format!("backward_layer: expected {expected}")));
        }
        Ok(Bidirectional { forward, backward, merge_mode: keys.merge_mode })
    }
}
