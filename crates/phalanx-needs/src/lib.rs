//! An attribute for tests that need more than a Rust toolchain.
//!
//! `#[needs(gxx)]` above `#[test]` marks a test that needs g++. On a machine without it, `cargo test`
//! reports the test as ignored, with the reason, instead of letting it pass without running. `build.rs`
//! lists the names.
//!
//! `PHALANX_REQUIRE=gxx,strace` makes the build fail if one of them is missing. CI sets it.
//!
//! ```text
//! #[needs(gxx)]
//! #[test]
//! fn kernels_give_the_numbers_of_the_reference() {}
//! ```

use proc_macro::{TokenStream, TokenTree};

const KNOWN: &str = env!("PHALANX_KNOWN_CAPABILITIES");
const AVAILABLE: &str = env!("PHALANX_CAPABILITIES");

/// Ignores a test, with the reason, on a machine that lacks one of the named tools or datasets.
#[proc_macro_attribute]
pub fn needs(names: TokenStream, test: TokenStream) -> TokenStream {
    // `#[test]` must expand after `#[ignore]` is added.
    if !has_test_attribute(&test) {
        return error("#[needs(..)] must be placed above #[test]");
    }
    let names: Vec<String> = names
        .into_iter()
        .filter(|token| !matches!(token, TokenTree::Punct(_)))
        .map(|token| token.to_string())
        .collect();
    if let Some(unknown) = names.iter().find(|name| !lists(KNOWN, name)) {
        return error(&format!("needs: expected any of {KNOWN}, received {unknown}"));
    }
    let missing: Vec<&str> =
        names.iter().filter(|name| !lists(AVAILABLE, name)).map(String::as_str).collect();
    if missing.is_empty() {
        return test;
    }
    let ignore = format!("#[ignore = \"needs {}\"]", missing.join(", "));
    let ignore: TokenStream = ignore.parse().expect("an attribute");
    ignore.into_iter().chain(test).collect()
}

fn lists(list: &str, name: &str) -> bool {
    list.split(',').any(|listed| listed == name)
}

/// Whether `#[test]` is among the item's attributes.
fn has_test_attribute(item: &TokenStream) -> bool {
    item.clone().into_iter().any(|token| match token {
        TokenTree::Group(group) => group.stream().to_string().trim() == "test",
        _ => false,
    })
}

fn error(message: &str) -> TokenStream {
    format!("compile_error!({message:?});").parse().expect("an invocation")
}
