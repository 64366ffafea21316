//! Communication of replicas: threads that drive the GPUs of this process, reductions on and across GPUs, and the
//! flags and fetched rows that processes exchange.

mod allreduce_schedule;
mod device_group;
mod device_threads;
mod lower;
mod peer_group;

pub(crate) use allreduce_schedule::ReduceSchedule;
pub(crate) use device_group::{DeviceReplicas, run_all};
pub(crate) use device_threads::ThreadPool;
pub(crate) use peer_group::{PeerGroup, peer_timeout};
