//! The contract between models and backends: what an executor does with a program, what a batch is, and which
//! devices belong to which process. No function here depends on the kind of device.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod backend;
mod batch;
mod checks;
mod cluster;
mod error;
mod executor;
mod program_table;
mod resident;

pub use backend::{
    Backend, DeviceInfo, DeviceSlot, DeviceTraits, MemoryLimit, MemoryPlan, OpenRequest,
};
pub use batch::{Accumulate, Batch, FeedData};
pub use checks::{
    check_batch, check_len, check_own_batch, check_own_feeds, check_program, check_slots,
    check_step_input,
};
pub use cluster::{Cluster, LocalShard, check_equal};
pub use error::ExecError;
pub use executor::{
    Executor, ProcessFlags, Profiling, ProgramId, ResidentData, Staging, StateId, StepTimes,
};
pub use program_table::ProgramTable;
pub use resident::{
    AffineAugment, Column, ColumnData, Fill, ImageShape, StepInput, TableId, check_columns,
};
