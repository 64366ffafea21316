//! Classes of `keras.ops` that cannot be nodes of a model, and why.

const FUNCTION: &str = "holds a Python function";
const SHAPE: &str = "has a shape that depends on the data";
const DECOMPOSITION: &str = "needs a matrix decomposition";
const COMPLEX: &str = "needs complex numbers";
const BITS: &str = "works on the bits of floats";
const BATCH: &str = "mixes the samples of a batch";
const BROKEN: &str = "confuses its arguments in Keras itself; use a layer";
const FIXED_BATCH: &str = "needs a batch of fixed size in Keras; reshape and transpose instead";
const CONSTANT: &str = "makes a value without samples";
const ONE_MATRIX: &str = "takes one matrix for the whole batch in Keras";
const VECTOR: &str = "takes one vector for the whole batch in Keras";

/// Classes by module and reason.
const REFUSED: &[(&str, &str, &[&str])] = &[
    (
        "core",
        FUNCTION,
        &[
            "AssociativeScan",
            "Cond",
            "ForiLoop",
            "Map",
            "Scan",
            "Switch",
            "VectorizedMap",
            "WhileLoop",
        ],
    ),
    ("core", BATCH, &["Scatter", "ScatterUpdate"]),
    ("math", COMPLEX, &["ViewAsComplex", "ViewAsReal"]),
    ("math", BATCH, &["SegmentMax", "SegmentMin", "SegmentProd", "SegmentReduction", "SegmentSum"]),
    (
        "linalg",
        DECOMPOSITION,
        &["Eig", "Eigh", "Lstsq", "LuFactor", "MatrixRank", "Pinv", "Qr", "SVD"],
    ),
    ("einops", FIXED_BATCH, &["Rearrange"]),
    ("linalg", FUNCTION, &["JVP"]),
    ("nn", BROKEN, &["ConvTranspose"]),
    ("nn", COMPLEX, &["Polar"]),
    ("linalg", ONE_MATRIX, &["CholeskyInverse"]),
    ("numpy", SHAPE, &["Bincount", "Nonzero", "Unique"]),
    ("numpy", BITS, &["Nextafter", "View"]),
    ("numpy", BATCH, &["Corrcoef", "Diag", "Diagflat", "Kron"]),
    ("numpy", VECTOR, &["Correlate", "Histogram", "Meshgrid"]),
    ("numpy", CONSTANT, &["Arange", "Full"]),
];

/// Why a class of a module below `keras.src.ops` is refused; `None` if it is not.
pub fn reason(module: &str, class: &str) -> Option<&'static str> {
    let row = REFUSED.iter().find(|(m, _, classes)| *m == module && classes.contains(&class));
    row.map(|(_, reason, _)| *reason)
}

/// The refused classes as `(module, class)`.
pub fn class_names() -> Vec<(&'static str, &'static str)> {
    let names = REFUSED.iter().flat_map(|(m, _, classes)| classes.iter().map(move |c| (*m, *c)));
    names.collect()
}
