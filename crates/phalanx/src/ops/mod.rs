//! The functions of `keras.ops` as nodes of a model.
//!
//! A file stores a call of `keras.ops.mean(x, axis=1)`, or `x + y`, as an object of a class such as `Mean` in a module such
//! as `keras.src.ops.numpy`. `from_config` makes a layer of it. An op is a function that appends nodes to the graph, and a
//! row in the table of its module; see `OpContext` for how it reads its arguments.

mod context;
mod ctc;
mod elementwise;
mod exact;
mod fourier;
mod image;
mod index;
mod integers;
mod layout;
mod linalg;
mod nn;
mod product;
mod reduce;
mod refused;
mod sequence;
mod sort;
mod special;
mod symbols;
mod warp;
mod window;

pub use refused::class_names as refused_class_names;
pub use refused::reason as refusal;
pub use symbols::{call, layer};

use crate::error::{Error, Result};
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::Config;
use context::OpContext;
use phalanx_graph::NodeId;

/// An op: a class of one of Keras' modules.
#[derive(Debug)]
pub(crate) struct OpClass {
    /// The module below `keras.src.ops`.
    module: &'static str,
    /// The class.
    name: &'static str,
    /// The names of the call's arguments, in order.
    arguments: &'static [&'static str],
    build: fn(&mut OpContext<'_, '_>) -> Result<Outputs>,
}

/// Declares the ops of a module. A row names the class, the arguments of its call and the function that builds it.
macro_rules! ops {
    ($table:ident, $module:literal; $($class:ident($($argument:ident),*) => $build:expr,)+) => {
        pub(super) const $table: &[$crate::ops::OpClass] = &[$($crate::ops::OpClass {
            module: $module,
            name: stringify!($class),
            arguments: &[$(stringify!($argument)),*],
            build: $build,
        }),+];
    };
}
use ops;

const TABLES: &[&[OpClass]] = &[
    ctc::NN,
    elementwise::CORE,
    elementwise::MATH,
    elementwise::NUMPY,
    fourier::MATH,
    image::IMAGE,
    index::CORE,
    index::MATH,
    index::NUMPY,
    integers::NUMPY,
    layout::CORE,
    layout::NUMPY,
    linalg::LINALG,
    linalg::MATH,
    linalg::NUMPY,
    nn::NN,
    product::LINALG,
    product::MATH,
    product::NN,
    product::NUMPY,
    reduce::MATH,
    reduce::NN,
    reduce::NUMPY,
    sequence::NUMPY,
    sort::MATH,
    sort::NUMPY,
    special::NUMPY,
    warp::IMAGE,
    window::NN,
];

/// The prefix of the modules of ops.
const MODULES: &str = "keras.src.ops.";

/// Whether a class of this module is an op.
pub(crate) fn is_op(module: &str) -> bool {
    module.starts_with(MODULES)
}

/// Whether a layer takes values whose batch is the second axis.
pub(crate) fn removes_first_axis(layer: &dyn Layer) -> bool {
    is_op(layer.module()) && ["GetItem", "Squeeze"].contains(&layer.class_name())
}

/// Every op as `(module, class)`.
pub fn class_names() -> Vec<(&'static str, &'static str)> {
    TABLES.iter().flat_map(|table| table.iter()).map(|op| (op.module, op.name)).collect()
}

/// Creates an op from its module, class and config.
///
/// # Errors
/// [`Error::Unknown`] for an unknown class, [`Error::Argument`] for one that cannot be a node of a model.
pub(crate) fn from_config(module: &str, class: &str, config: Config) -> Result<Box<dyn Layer>> {
    let short = module.strip_prefix(MODULES).unwrap_or(module);
    let mut all = TABLES.iter().flat_map(|table| table.iter());
    let found = all.find(|op| op.module == short && op.name == class);
    let op = found.ok_or_else(|| match refused::reason(short, class) {
        Some(reason) => {
            let received = format!("{module}.{class}, which {reason}");
            Error::argument("model", "ops", "ops of supported classes", received)
        }
        None => Error::Unknown {
            kind: "op",
            name: format!("{module}.{class}"),
            known: class_names().into_iter().filter(|o| o.0 == short).map(|o| o.1.into()).collect(),
        },
    })?;
    Ok(Box::new(KerasOp { op, module: module.into(), config }))
}

/// An op and the arguments of its constructor.
#[derive(Debug)]
struct KerasOp {
    op: &'static OpClass,
    module: String,
    config: Config,
}

impl Layer for KerasOp {
    fn class_name(&self) -> &'static str {
        self.op.name
    }

    fn module(&self) -> &str {
        &self.module
    }

    fn config(&self) -> Config {
        self.config.clone()
    }

    fn signature(&self) -> &'static [&'static str] {
        self.op.arguments
    }

    fn call(&self, cx: &mut LayerContext<'_>, _: &[NodeId]) -> Result<Outputs> {
        exact::build(cx, self.op, &self.config)
    }
}
