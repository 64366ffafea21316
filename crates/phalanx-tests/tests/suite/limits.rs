//! Limits on the size of files, functions, parameter lists and types. A type or function over a limit does several
//! jobs, unless the table of exceptions gives a reason.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Limit {
    /// Lines of a file before its tests.
    FileLines,
    /// Lines of a function.
    FunctionLines,
    /// Parameters of a function besides `self`, unless it has a foreign ABI.
    Parameters,
    /// Fields of a struct.
    Fields,
    /// Methods of a type in all its inherent `impl` blocks of a crate.
    Methods,
}

impl Limit {
    fn maximum(self) -> usize {
        match self {
            Limit::FileLines => 500,
            Limit::FunctionLines => 80,
            Limit::Parameters => 6,
            Limit::Fields => 12,
            Limit::Methods => 30,
        }
    }

    fn noun(self) -> &'static str {
        match self {
            Limit::FileLines => "lines before its tests",
            Limit::FunctionLines => "lines",
            Limit::Parameters => "parameters",
            Limit::Fields => "fields",
            Limit::Methods => "methods",
        }
    }
}

/// A limit, a file below `crates` or of the Python package (a crate's folder for methods), the item (empty for a file), and why it is over the
/// limit.
type Exception = (Limit, &'static str, &'static str, &'static str);

const EXCEPTIONS: &[Exception] = &[
    // Vocabularies of users, and passes that dispatch.
    (Limit::Fields, "phalanx-cli/src/args/train.rs", "Train", "flags of a command, parsed by clap"),
    (Limit::Fields, "phalanx/src/data/generator.rs", "ImageDataGenerator", "Keras' arguments"),
    (
        Limit::Fields,
        "phalanx/src/layers/batch_normalization.rs",
        "BatchNormalization",
        "Keras' arguments",
    ),
    (Limit::Fields, "phalanx/src/layers/conv.rs", "Conv", "Keras' arguments"),
    (Limit::Fields, "phalanx/src/layers/rnn/conv_lstm.rs", "ConvCell", "Keras' arguments"),
    (Limit::Fields, "phalanx/src/layers/conv_transpose.rs", "ConvTranspose", "Keras' arguments"),
    (Limit::Fields, "phalanx/src/layers/depthwise_conv.rs", "DepthwiseConv", "Keras' arguments"),
    (Limit::Fields, "phalanx/src/layers/separable_conv.rs", "SeparableConv", "Keras' arguments"),
    (
        Limit::Fields,
        "phalanx/src/layers/attention/grouped_query_attention.rs",
        "GroupQueryAttention",
        "Keras' arguments",
    ),
    (
        Limit::Fields,
        "phalanx/src/layers/attention/multi_head_attention.rs",
        "MultiHeadAttention",
        "Keras' arguments",
    ),
    (
        Limit::Fields,
        "phalanx/src/layers/audio/mel_spectrogram.rs",
        "MelSpectrogram",
        "Keras' arguments",
    ),
    (Limit::Fields, "phalanx/src/model/fit.rs", "Fit", "Keras' arguments of fit"),
    (Limit::Parameters, "python/src/engine.rs", "new", "keyword arguments of Python"),
    (
        Limit::Methods,
        "phalanx-cuda/src",
        "Lowering",
        "one pass over a program; a method for each kind of instruction, in the file of its family",
    ),
    (
        Limit::Methods,
        "phalanx-graph/src",
        "Graph",
        "the vocabulary in which layers and derivatives are written",
    ),
    (
        Limit::Methods,
        "phalanx/src",
        "LayerContext",
        "the vocabulary in which layers are written, also those of users",
    ),
    (
        Limit::Methods,
        "phalanx/src",
        "OpContext",
        "the vocabulary in which the functions of keras.ops read their arguments",
    ),
    (Limit::Methods, "phalanx/src", "Model", "the users' vocabulary, which is Keras'"),
    (
        Limit::Methods,
        "phalanx/src",
        "Session",
        "runs steps on what its parts hold: objective, programs, weights, counters, other workers",
    ),
];

/// A file, function or type with its size.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Size {
    limit: Limit,
    file: String,
    item: String,
    count: usize,
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Size { limit, file, item, count } = self;
        let (noun, max) = (limit.noun(), limit.maximum());
        write!(f, "{limit:?}: {file} {item}: {count} {noun}, expected at most {max}")
    }
}

/// The items of a file that are over a limit, and the methods of its types.
struct Measured<'a> {
    file: &'a str,
    over: Vec<Size>,
    methods: &'a mut BTreeMap<(String, String), usize>,
}

impl Measured<'_> {
    fn add(&mut self, limit: Limit, item: impl ToString, count: usize) {
        if count > limit.maximum() {
            let (file, item) = (self.file.to_string(), item.to_string());
            self.over.push(Size { limit, file, item, count });
        }
    }

    fn function(&mut self, signature: &syn::Signature, end: proc_macro2::Span) {
        let lines = end.end().line - signature.span().start().line + 1;
        self.add(Limit::FunctionLines, &signature.ident, lines);
        if signature.abi.is_none() {
            let names = |input: &syn::FnArg| match input {
                syn::FnArg::Typed(typed) => names(&typed.pat),
                syn::FnArg::Receiver(_) => 0,
            };
            let parameters = signature.inputs.iter().map(names).sum();
            self.add(Limit::Parameters, &signature.ident, parameters);
        }
    }
}

/// The names of a parameter: a tuple has one for each of its elements.
fn names(parameter: &syn::Pat) -> usize {
    match parameter {
        syn::Pat::Tuple(tuple) => tuple.elems.iter().map(names).sum(),
        _ => 1,
    }
}

impl<'ast> Visit<'ast> for Measured<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, item.block.span());
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, item.block.span());
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.function(&item.sig, item.span());
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.add(Limit::Fields, &item.ident, item.fields.len());
        visit::visit_item_struct(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let (None, syn::Type::Path(path)) = (&item.trait_, &*item.self_ty) {
            let name = path.path.segments.last().expect("a name").ident.to_string();
            let methods = item.items.iter().filter(|i| matches!(i, syn::ImplItem::Fn(_))).count();
            let folder = self.file.split('/').take(2).collect::<Vec<_>>().join("/");
            *self.methods.entry((folder, name)).or_default() += methods;
        }
        visit::visit_item_impl(self, item);
    }
}

/// Whether an item is a module of tests with its code in the same file.
fn is_test_module(item: &syn::Item) -> bool {
    let syn::Item::Mod(module) = item else { return false };
    let tests = |attribute: &syn::Attribute| match &attribute.meta {
        syn::Meta::List(list) => {
            list.path.is_ident("cfg") && list.tokens.to_string().contains("test")
        }
        _ => false,
    };
    module.content.is_some() && module.attrs.iter().any(tests)
}

/// Lines of a file before its tests.
fn lines_before_tests(text: &str, file: &syn::File) -> usize {
    let tests = file.items.iter().find(|item| is_test_module(item));
    tests.map_or(text.lines().count(), |tests| tests.span().start().line - 1)
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The folders with Rust code of a crate.
const FOLDERS: [&str; 4] = ["src", "tests", "benches", "examples"];

/// Everything over a limit in the sources, tests, benchmarks and examples of all crates and of the Python package.
fn over_limits() -> Vec<Size> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let crates = root.join("crates");
    let members = std::fs::read_dir(&crates).unwrap().map(|entry| entry.unwrap().path());
    let mut paths = vec![];
    for member in members.chain([root.join("python")]) {
        FOLDERS.iter().for_each(|folder| rust_files(&member.join(folder), &mut paths));
    }
    let (mut over, mut methods) = (vec![], BTreeMap::new());
    for path in paths {
        let file = path.strip_prefix(&crates).or(path.strip_prefix(&root)).unwrap();
        let file = file.to_str().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{file}: {e}"));
        let mut measured = Measured { file, over: vec![], methods: &mut methods };
        measured.add(Limit::FileLines, "", lines_before_tests(&text, &parsed));
        measured.visit_file(&parsed);
        over.append(&mut measured.over);
    }
    for ((file, item), count) in methods {
        let limit = Limit::Methods;
        over.extend((count > limit.maximum()).then_some(Size { limit, file, item, count }));
    }
    over.sort();
    over
}

#[test]
fn files_functions_and_types_are_within_the_limits() {
    let over = over_limits();
    let excepts = |size: &Size, (limit, file, item, _): &Exception| {
        (size.limit, size.file.as_str(), size.item.as_str()) == (*limit, *file, *item)
    };
    let mut wrong: Vec<String> = over
        .iter()
        .filter(|size| !EXCEPTIONS.iter().any(|exception| excepts(size, exception)))
        .map(Size::to_string)
        .collect();
    for exception @ (limit, file, item, _) in EXCEPTIONS {
        if !over.iter().any(|size| excepts(size, exception)) {
            wrong.push(format!("{limit:?}: {file} {item}: within the limit, remove the exception"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
