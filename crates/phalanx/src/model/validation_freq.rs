//! The frequency at which `fit` validates.

/// The epochs after which `fit` validates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValidationFreq {
    /// After every n-th epoch.
    Every(usize),
    /// After these epochs, counted from 1.
    Epochs(Vec<usize>),
}

impl From<usize> for ValidationFreq {
    fn from(every: usize) -> ValidationFreq {
        ValidationFreq::Every(every)
    }
}

impl From<Vec<usize>> for ValidationFreq {
    fn from(epochs: Vec<usize>) -> ValidationFreq {
        ValidationFreq::Epochs(epochs)
    }
}

impl<const N: usize> From<[usize; N]> for ValidationFreq {
    fn from(epochs: [usize; N]) -> ValidationFreq {
        ValidationFreq::Epochs(epochs.into())
    }
}

impl ValidationFreq {
    /// Whether to validate after an epoch, counted from 0.
    pub(super) fn is_due(&self, epoch: usize) -> bool {
        match self {
            ValidationFreq::Every(every) => (epoch + 1).is_multiple_of(*every),
            ValidationFreq::Epochs(epochs) => epochs.contains(&(epoch + 1)),
        }
    }
}
