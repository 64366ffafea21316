//! The tests of the whole crate, in one program: it links once. `cargo test --test suite resume::` runs one module.

mod accumulation;
mod api;
mod callbacks;
mod common;
mod data;
mod datasets;
mod deterministic;
mod examples;
mod files;
mod image_layers;
mod keras_files;
mod keras_models;
mod keras_names;
mod keras_networks;
mod layers;
mod loss_scale;
mod losses;
mod metrics;
mod mnist;
mod optimizers;
mod plots;
mod registry;
mod replicas;
mod resume;
mod tensorboard;
mod workers;
