//! Tests that span several crates. They are in `tests/`; there is no code here.
