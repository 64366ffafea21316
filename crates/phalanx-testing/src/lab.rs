//! The interface between the shared tests and an executor.

use phalanx_exec::Executor;
use phalanx_graph::{Mesh, ParamSpec};

/// Tolerated errors against f64, relative to the largest number.
#[derive(Clone, Copy, Debug)]
pub struct Tolerances {
    /// A single op.
    pub op: f64,
    /// A few training steps.
    pub training: f64,
    /// Random graphs: sums are longer than in single ops, and errors propagate through several of them.
    pub graph: f64,
}

/// The tolerances of 32-bit floats.
impl Default for Tolerances {
    fn default() -> Tolerances {
        Tolerances { op: 1e-5, training: 2e-5, graph: 1e-4 }
    }
}

/// Creates the executors under test.
pub trait Lab {
    /// The meshes that every test covers; at least two.
    fn meshes(&self) -> Vec<Mesh>;

    /// The executor in its default configuration.
    fn executor(&self, mesh: Mesh, params: &[ParamSpec]) -> Box<dyn Executor>;

    /// One executor of every kind, with its name: single ops are checked on all of them.
    fn executors(&self, mesh: Mesh, params: &[ParamSpec]) -> Vec<(String, Box<dyn Executor>)> {
        vec![("default".into(), self.executor(mesh, params))]
    }

    /// The tolerated errors.
    fn tolerances(&self) -> Tolerances {
        Tolerances::default()
    }

    /// The number of random graphs to test.
    fn random_graphs(&self) -> u32 {
        800
    }
}

/// Declares a `#[test]` for every test of this crate, in one module per topic.
/// `executor_tests!([gxx], super::Emulated)` runs them with a [`Lab`] that needs g++ (see
/// [`needs`](crate::needs)).
#[macro_export]
macro_rules! executor_tests {
    ($needs:tt, $lab:expr) => {
        $crate::executor_tests! { $needs, $lab;
            errors:
                a_batch_that_fits_runs a_larger_batch_than_compiled a_feed_of_another_size
                a_feed_of_another_type a_missing_feed a_program_or_parameter_of_another_executor
                missing_scalars_of_the_optimizer;
            ops:
                unary_ops binary_ops select_ops reduce_ops layout_ops dot_ops matmul_ops conv_ops pool_ops
                softmax_ops index_and_random_ops functions batch_sums sample_ops batch_norm_ops recurrent_ops shared_nodes
                ops_without_derivatives integers_are_fetched_as_floats threshold_counts
                replica_means_are_weighted_by_rows;
            random: random_graphs;
            steps:
                a_step_may_do_nothing_but_assign programs_share_parameters programs_of_several_shapes
                weights_are_fetched_before_the_update slots_start_as_the_rule_says;
            train:
                mlp_with_partial_gradients mlp_with_sharded_gradients mlp_with_adam self_attention recurrent_network
                sharded_kernels                 gradients_are_clipped gradients_are_accumulated a_scaled_loss
                an_overflow_keeps_accumulated_gradients cnn_with_shared_statistics
                cnn_with_statistics_of_each_replica fewer_rows_than_workers unusual_gradients
                a_step_without_rows_moves_by_the_penalty_alone
                a_weight_may_move_by_its_penalty_alone;
        }
    };
    ($needs:tt, $lab:expr; $($topic:ident: $($name:ident)+;)+) => {
        $(mod $topic {
            $(#[$crate::needs $needs]
            #[test]
            fn $name() {
                $crate::$topic::$name(&$lab);
            })+
        })+
    };
}
