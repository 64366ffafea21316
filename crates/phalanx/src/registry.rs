//! Tables of the classes that are looked up by Keras' names: layers, losses, metrics and optimizers.
//!
//! A family is a trait, such as `Layer`. Its [`Registry`] holds tables, and [`registry!`] declares a table with one
//! row per class. A row names the class' module, the class and its options:
//!
//! ```ignore
//! registry! {
//!     /// Every loss, for one import.
//!     pub mod classes;
//!     const TABLE: dyn Loss = read;
//!
//!     huber { Huber aliases ["huber"] }
//! }
//! ```
//!
//! The lookup is data: a name and the function that reads the config.

use crate::error::{Error, Result};
use serde_json::{Map, Value};

/// A Keras config.
pub type Config = Map<String, Value>;

/// A class of the family `T`, such as `dyn Layer`.
pub(crate) struct Class<T: ?Sized> {
    /// Keras' class name.
    pub name: &'static str,
    /// Other names that `compile` accepts.
    pub aliases: &'static [&'static str],
    /// The keys of the config that have no default.
    pub required: &'static [&'static str],
    /// Creates an object from its config.
    pub read: fn(&Class<T>, &Config) -> Result<Box<T>>,
}

impl<T: ?Sized> Class<T> {
    /// A class without other names and without required keys.
    pub const fn new(
        name: &'static str,
        read: fn(&Class<T>, &Config) -> Result<Box<T>>,
    ) -> Class<T> {
        Class { name, aliases: &[], required: &[], read }
    }

    /// Whether this is the class name or another name of the class.
    pub fn has_name(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }
}

/// The classes of a family.
pub(crate) struct Registry<T: ?Sized + 'static> {
    /// What an object of the family is called in error messages.
    pub kind: &'static str,
    /// The tables, one for each folder of the family.
    pub tables: &'static [&'static [Class<T>]],
}

impl<T: ?Sized> Registry<T> {
    /// The classes, in the order of the tables.
    pub fn classes(&self) -> impl Iterator<Item = &'static Class<T>> + use<T> {
        self.tables.iter().flat_map(|table| table.iter())
    }

    /// Keras' class names, in the order of the tables.
    pub fn class_names(&self) -> Vec<&'static str> {
        self.classes().map(|class| class.name).collect()
    }

    /// The other names of all classes, in the order of the tables.
    pub fn aliases(&self) -> impl Iterator<Item = &'static str> + use<T> {
        self.classes().flat_map(|class| class.aliases.iter().copied())
    }

    /// Finds the class that `matches` accepts.
    ///
    /// # Errors
    /// [`Error::Unknown`] with the names of `known`.
    pub fn find(
        &self,
        name: &str,
        matches: impl Fn(&Class<T>) -> bool,
        known: impl FnOnce() -> Vec<String>,
    ) -> Result<&'static Class<T>> {
        self.classes().find(|class| matches(class)).ok_or_else(|| Error::Unknown {
            kind: self.kind,
            name: name.into(),
            known: known(),
        })
    }
}

/// Declares a table of classes. A row expands to the export of the class, here and in the module of all classes,
/// and to its entry of the table. The words after a class are fields of [`Class`]. `= function` replaces the
/// function that reads the config.
///
/// The modules are declared outside, because rustfmt does not follow modules that a macro declares.
macro_rules! registry {
    (
        $(#[$doc:meta])*
        pub mod $all:ident;
        const $table:ident: $family:ty = $read:ident;
        $($($module:ident)::+ {
            $($class:ident $(= $own:ident)? $($field:ident [$($word:literal),+])*),+ $(,)?
        })+
    ) => {
        $(pub use $($module)::+::{$($class),+};)+

        $(#[$doc])*
        pub mod $all {
            $(pub use super::{$($class),+};)+
        }

        pub(super) const $table: &[$crate::registry::Class<$family>] = &[$($(
            $crate::registry::Class {
                $($field: &[$($word),+],)*
                ..$crate::registry::Class::new(
                    stringify!($class),
                    $crate::registry::registry!(@read $read $class $($own)?),
                )
            },
        )+)+];
    };
    (@read $read:ident $class:ident) => { $read::<$class> };
    (@read $read:ident $class:ident $own:ident) => { $own };
}
pub(crate) use registry;

/// The methods of a class that follow from its struct: its name, its config and access to what its family shares.
/// Objects add their entries to the config.
///
/// ```ignore
/// keras_class!("Dense");                                     // a layer
/// keras_class!("Huber", common);                             // a loss or an optimizer
/// keras_class!("BinaryCrossentropy", common, { "axis": -1 });
/// keras_class!("AUC", name);                                 // a metric
/// ```
macro_rules! keras_class {
    ($class:expr, common $(, $entries:tt)?) => {
        $crate::registry::keras_class!($class $(, $entries)?);

        fn common(&self) -> &Common {
            &self.common
        }

        fn common_mut(&mut self) -> &mut Common {
            &mut self.common
        }
    };
    ($class:expr, name $(, $entries:tt)?) => {
        $crate::registry::keras_class!($class, { "dtype": "float32" } $(, $entries)?);

        fn name(&self) -> &str {
            &self.name
        }

        fn set_name(&mut self, name: &str) {
            self.name = name.into();
        }
    };
    ($class:expr $(, $entries:tt)*) => {
        fn class_name(&self) -> &'static str {
            $class
        }

        fn config(&self) -> $crate::registry::Config {
            $crate::config::write_with(self, &[$(serde_json::json!($entries)),*])
        }
    };
}
pub(crate) use keras_class;
