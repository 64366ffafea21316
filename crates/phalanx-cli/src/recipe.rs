//! How a network is trained where the command line does not say it.

use crate::args::{Augment, Schedule, Train};
use crate::network::Network;
use crate::subject::Subject;
use phalanx::prelude::*;

/// The arguments with everything said, for so many samples in a step: the same on any number of replicas.
pub fn complete(args: &Train, subject: &Subject, batch: usize) -> Train {
    let mut args = args.clone();
    // As its tutorial trains it, at a higher rate: that gains a percent and more.
    let googlenet = subject.network() == Some(Network::Minigooglenet);
    if googlenet && args.optimizer.is_none() {
        args.lr.get_or_insert(0.1 * batch.min(256) as f64 / 256.0);
    }
    let usual = if googlenet { Schedule::Poly } else { Schedule::Constant };
    args.schedule.get_or_insert(usual);
    if args.augment.is_empty() && googlenet {
        args.augment = vec![Augment::Shift, Augment::Flip];
    }
    args.augment.retain(|kind| *kind != Augment::None);
    args
}

/// Samples per replica: a GPU has nothing to do with few images of 32 by 32.
pub fn batch(subject: &Subject, strategy: &MirroredStrategy) -> usize {
    let on_gpus = strategy.devices().iter().all(|d| d.kind == DeviceKind::Gpu);
    match subject.network() {
        Some(Network::Minigooglenet) if on_gpus => 256,
        _ => subject.usual_batch(),
    }
}
