//! Custom initializers, regularizers and constraints of weights.

use super::Config;
use super::registered::{Read, Registered, check_name, registered, registered_mut};
use crate::by_name::Named;
use crate::config;
use crate::constraints::Constraint;
use crate::error::{Error, Result};
use crate::initializers::Initializer;
use crate::regularizers::Regularizer;
use phalanx_graph::rng::Stream;
use phalanx_graph::{Graph, NodeId, Space};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;

/// A custom class whose values files store as objects.
pub trait CustomObject: Debug + Send + Sync {
    /// Returns the name under which the class is registered, `package>Name`.
    fn class_name(&self) -> &'static str;

    /// Returns the config, with the keys of the Python class' `get_config`.
    fn config(&self) -> Config;
}

/// A custom initializer. See [`register_initializer`].
pub trait CustomInitializer: CustomObject {
    /// Fills the values of a weight of these dimensions, in row-major order. `rng` depends on the seed of the model and on
    /// the weight.
    fn fill(&self, values: &mut [f32], dims: &[usize], rng: &mut Stream);
}

/// A custom regularizer of weights. See [`register_regularizer`].
pub trait CustomRegularizer: CustomObject {
    /// Appends the penalty of a weight, one number, which is added to the loss.
    ///
    /// # Errors
    /// If the weight does not suit the formula.
    fn penalty(&self, g: &mut Graph, weight: NodeId) -> Result<NodeId>;
}

/// A custom constraint. See [`register_constraint`].
pub trait CustomConstraint: CustomObject {
    /// Appends the projection of a weight after its update. The result has the dimensions of the weight.
    ///
    /// # Errors
    /// If the weight does not suit the formula.
    fn project(&self, g: &mut Graph, weight: NodeId) -> Result<NodeId>;
}

/// A shared value of a custom class. Two are equal if their classes and configs are.
#[derive(Debug)]
pub struct CustomValue<T: ?Sized>(Arc<T>);

impl<T: ?Sized> Clone for CustomValue<T> {
    fn clone(&self) -> CustomValue<T> {
        CustomValue(self.0.clone())
    }
}

impl<T: ?Sized> Deref for CustomValue<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: CustomObject + ?Sized> PartialEq for CustomValue<T> {
    fn eq(&self, other: &CustomValue<T>) -> bool {
        self.class_name() == other.class_name() && self.config() == other.config()
    }
}

impl CustomValue<dyn CustomConstraint> {
    /// The projection, checked.
    pub(crate) fn checked_projection(&self, g: &mut Graph, weight: NodeId) -> Result<NodeId> {
        let projected = self.project(g, weight)?;
        let (expected, received) = (g.ty(weight), g.ty(projected));
        match expected == received {
            true => Ok(projected),
            false => {
                let owner = format!("constraint '{}'", self.class_name());
                Err(Error::argument(owner, "projection", expected.to_string(), received.clone()))
            }
        }
    }
}

impl CustomValue<dyn CustomRegularizer> {
    /// The penalty, checked.
    pub(crate) fn checked_penalty(&self, g: &mut Graph, weight: NodeId) -> Result<NodeId> {
        let penalty = self.penalty(g, weight)?;
        let received = g.ty(penalty);
        match received.dims.is_empty() && received.space == Space::Mirrored {
            true => Ok(penalty),
            false => {
                let owner = format!("regularizer '{}'", self.class_name());
                let expected = "one number, the same for all samples";
                Err(Error::argument(owner, "penalty", expected, received.clone()))
            }
        }
    }
}

/// The registered value of this name, from its config.
fn read<T: ?Sized>(
    table: impl FnOnce(&Registered) -> &BTreeMap<&'static str, Read<T>>,
    name: &str,
    config: &Config,
) -> Option<Result<CustomValue<T>>> {
    let read = *table(&registered()).get(name)?;
    Some(read(name, config).map(|value| CustomValue(value.into())))
}

/// Implements a custom variant of an enum: its constructor, its registration and its lookup by name.
macro_rules! custom_variant {
    ($enum:ident, $custom:ident, $table:ident, $register:ident, $doc:literal) => {
        impl $enum {
            /// A value of a custom class.
            pub fn custom(value: impl $custom + 'static) -> $enum {
                $enum::Custom(CustomValue(Arc::new(value)))
            }

            /// The registered value of this name, from its config.
            pub(crate) fn read_custom(name: &str, config: &Config) -> Option<Result<$enum>> {
                Some(read(|registered| &registered.$table, name, config)?.map($enum::Custom))
            }

            /// The registered value of this name with its default arguments.
            pub(crate) fn custom_by_name(name: &str) -> Option<$enum> {
                $enum::read_custom(name, &Config::new())?.ok()
            }

            /// The registered name and the config of a value of a custom class.
            pub(crate) fn as_custom(&self) -> Option<(&'static str, Config)> {
                match self {
                    $enum::Custom(value) => Some((value.class_name(), value.config())),
                    _ => None,
                }
            }
        }

        #[doc = $doc]
        ///
        /// # Errors
        /// If the name is one of Keras' classes or not of the form `package>Name`.
        pub fn $register<T>(name: &'static str) -> Result<()>
        where
            T: $custom + Default + Serialize + DeserializeOwned + 'static,
        {
            let known = || match $enum::custom_by_name(name).is_some() {
                true => vec![],
                false => $enum::from_name(name).map(|_| name).into_iter().collect(),
            };
            check_name($enum::KIND, name, known)?;
            let read: Read<dyn $custom> = |class, config| {
                let value: T = config::read(class, config)?;
                Ok(Box::new(value))
            };
            registered_mut().$table.insert(name, read);
            Ok(())
        }
    };
}

custom_variant!(
    Initializer,
    CustomInitializer,
    initializers,
    register_initializer,
    r#"Registers a custom initializer for files and for its name. Keys that a config lacks have the values of `Default`.
See [`register_layer`](super::register_layer) for `name`.

```
use phalanx::custom::*;
use phalanx::prelude::*;
use serde::{Deserialize, Serialize};

/// Alternates between `value` and `-value`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Alternating {
    value: f64,
}

impl Default for Alternating {
    fn default() -> Alternating {
        Alternating { value: 0.1 }
    }
}

impl CustomObject for Alternating {
    fn class_name(&self) -> &'static str {
        "my>Alternating"
    }

    fn config(&self) -> Config {
        to_config(self)
    }
}

impl CustomInitializer for Alternating {
    fn fill(&self, values: &mut [f32], _: &[usize], _: &mut Stream) {
        for (i, value) in values.iter_mut().enumerate() {
            *value = if i % 2 == 0 { self.value as f32 } else { -self.value as f32 };
        }
    }
}

register_initializer::<Alternating>("my>Alternating")?;
let by_name = Dense::new(2).kernel_initializer("my>Alternating");
let by_value = Dense::new(2).kernel_initializer(Initializer::custom(Alternating { value: 0.5 }));
let model = Sequential::new().add(Input::new([1])).add(by_name).add(by_value).build()?;
let weights = model.get_weights()?;
assert_eq!(weights[0].f32().unwrap(), [0.1, -0.1]);
assert_eq!(weights[2].f32().unwrap(), [0.5, -0.5, 0.5, -0.5]);
# Ok::<(), phalanx::Error>(())
```"#
);

custom_variant!(
    Regularizer,
    CustomRegularizer,
    regularizers,
    register_regularizer,
    r#"Registers a custom regularizer of weights for files and for its name. Keys that a config lacks have the values of
`Default`. See [`register_layer`](super::register_layer) for `name`.

The penalty is differentiated like any other formula. It is a function of the whole weight, so it cannot be an
`activity_regularizer`: a layer adds such a term with [`LayerContext::add_loss`](super::LayerContext::add_loss).

```
use phalanx::custom::*;
use phalanx::prelude::*;
use serde::{Deserialize, Serialize};

/// `factor · (Σw)²`
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct SquaredSum {
    factor: f64,
}

impl CustomObject for SquaredSum {
    fn class_name(&self) -> &'static str {
        "my>SquaredSum"
    }

    fn config(&self) -> Config {
        to_config(self)
    }
}

impl CustomRegularizer for SquaredSum {
    fn penalty(&self, g: &mut Graph, weight: NodeId) -> Result<NodeId> {
        let axes: Vec<usize> = (0..g.ty(weight).dims.len()).collect();
        let sum = g.sum_axes(weight, &axes)?;
        let sum = g.reshape(sum, &[])?;
        let square = g.unary(Unary::Square, sum)?;
        Ok(g.scale(square, self.factor)?)
    }
}

register_regularizer::<SquaredSum>("my>SquaredSum")?;
let regularizer = Regularizer::custom(SquaredSum { factor: 1e-3 });
let layer = Dense::new(4).kernel_regularizer(regularizer);
# Sequential::new().add(Input::new([2])).add(layer).build()?;
# Ok::<(), phalanx::Error>(())
```"#
);

custom_variant!(
    Constraint,
    CustomConstraint,
    constraints,
    register_constraint,
    r#"Registers a custom constraint for files and for its name. Keys that a config lacks have the values of `Default`. See
[`register_layer`](super::register_layer) for `name`.

```
use phalanx::custom::*;
use phalanx::prelude::*;
use serde::{Deserialize, Serialize};

/// Weights between `-limit` and `limit`, as a critic of a Wasserstein GAN has them.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Clip {
    limit: f64,
}

impl Default for Clip {
    fn default() -> Clip {
        Clip { limit: 0.01 }
    }
}

impl CustomObject for Clip {
    fn class_name(&self) -> &'static str {
        "my>Clip"
    }

    fn config(&self) -> Config {
        to_config(self)
    }
}

impl CustomConstraint for Clip {
    fn project(&self, g: &mut Graph, weight: NodeId) -> Result<NodeId> {
        Ok(g.clamp(weight, -self.limit, self.limit)?)
    }
}

register_constraint::<Clip>("my>Clip")?;
let layer = Dense::new(4).kernel_constraint("my>Clip");
# Sequential::new().add(Input::new([2])).add(layer).build()?;
# Ok::<(), phalanx::Error>(())
```"#
);
