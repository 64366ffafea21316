//! The streams of a GPU.

use crate::schedule::STREAMS;
use phalanx_cuda_driver::driver::{Event, Result, Stream};

/// The stream of all-reduces, after the others.
pub(super) const REDUCE_STREAM: usize = STREAMS;

/// The streams that steps and transfers run on.
pub(super) struct Streams {
    /// The streams of work items. The first starts and ends every step.
    pub work: Vec<Stream>,
    /// The stream of transfers to the GPU.
    pub copy: Stream,
    /// Recorded after the last started step.
    pub done: Event,
}

impl Streams {
    pub fn new() -> Result<Streams> {
        let work = (0..=REDUCE_STREAM).map(|_| Stream::new()).collect::<Result<_>>()?;
        Ok(Streams { work, copy: Stream::new()?, done: Event::new()? })
    }

    /// The stream that starts and ends every step.
    pub fn main(&self) -> &Stream {
        &self.work[0]
    }
}
