//! Tests of several crates together are in `tests/`; there is no code here.
