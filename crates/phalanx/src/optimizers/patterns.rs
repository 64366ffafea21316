//! Regular expressions of weights' paths.

use crate::error::{Error, Result};
use regex::Regex;

/// Compiles a regular expression that a user or a file supplies.
pub(super) fn compile(owner: &str, argument: &str, pattern: &str) -> Result<Regex> {
    Regex::new(pattern).map_err(|error| {
        let text = error.to_string();
        let reason = text.lines().last().unwrap_or_default().trim();
        let expected = format!("a regular expression without look-around ({reason})");
        Error::argument(owner, argument, expected, format!("'{pattern}'"))
    })
}

/// Compiles a regular expression that must match a whole path.
pub(super) fn compile_whole(owner: &str, argument: &str, pattern: &str) -> Result<Regex> {
    // The pattern alone must be valid: `)(` would be valid inside of a group.
    compile(owner, argument, pattern)?;
    compile(owner, argument, &format!("^(?:{pattern})$"))
}
