//! Sample weights of each target.

use super::Arrays;
use crate::error::{Error, Result};
use phalanx_graph::Tensor;
use std::sync::Arc;

impl Arrays {
    /// Weights the losses of each target by its own weights, as Keras' list of `sample_weight`. `None` stands for ones. The
    /// weights of a target are a float for each sample, or for each position of a sample, such as its time steps: each
    /// multiplies the loss value of that position.
    ///
    /// ```
    /// use phalanx::prelude::*;
    ///
    /// let x = Input::new([5, 2]).symbol();
    /// let steps = LSTM::new(3).return_sequences(true).apply(&x);
    /// let last = LSTM::new(1).apply(&x);
    /// let mut model = Model::new(&x, [steps, last])?;
    /// model.compile(Compile::new("adam").loss("mse").loss("mae"))?;
    /// let targets = vec![Tensor::zeros([4, 5, 3]), Tensor::zeros([4, 1])];
    /// let data = phalanx::data::Arrays::new(Tensor::zeros([4, 5, 2]), targets)?;
    /// let of_steps = Tensor::new([4, 5], vec![0.5; 20])?;
    /// model.fit(data.output_weights([Some(of_steps), None])?, Fit::new().verbose(0))?;
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    ///
    /// # Errors
    /// Another number of weights than targets, other rows, numbers that are not finite, or weights that were set before.
    pub fn output_weights(
        mut self,
        weights: impl IntoIterator<Item = Option<Tensor>>,
    ) -> Result<Arrays> {
        let wrong = |expected: String, received: String| {
            Err(Error::argument("Arrays", "output_weights", expected, received))
        };
        let weights: Vec<Option<Tensor>> = weights.into_iter().collect();
        if weights.len() != self.targets.len() {
            let expected = format!("{}, one for each target", self.targets.len());
            return wrong(expected, weights.len().to_string());
        }
        if self.weights.is_some() || !self.output_weights.is_empty() {
            return wrong("weights of each target alone".into(), "others besides".into());
        }
        let (shown, rows) = (self.window.clone(), self.inputs[0].rows());
        for weights in weights {
            let given = weights.unwrap_or_else(|| ones(shown.len()));
            let Some(values) = given.f32().filter(|_| given.dims().first() == Some(&shown.len()))
            else {
                let received = format!("{} {:?}", given.dtype(), given.dims());
                return wrong(format!("{} rows of floats", shown.len()), received);
            };
            if let Some(bad) = values.iter().find(|w| !w.is_finite()) {
                return wrong("finite numbers".into(), bad.to_string());
            }
            let weights = if shown.len() == rows { given } else { self.in_all_rows(&given)? };
            self.output_weights.push(Arc::new(weights));
        }
        Ok(self)
    }

    /// Weights of the rows that are shown, between ones for the others.
    fn in_all_rows(&self, shown: &Tensor) -> Result<Tensor> {
        let (width, mut dims) = (shown.row_len(), shown.dims().to_vec());
        dims[0] = self.inputs[0].rows();
        let mut all = vec![1.0; dims[0] * width];
        let range = self.window.start * width..self.window.end * width;
        all[range].copy_from_slice(shown.f32().unwrap_or_default());
        Ok(Tensor::new(dims, all)?)
    }
}

fn ones(rows: usize) -> Tensor {
    Tensor::new([rows], vec![1.0f32; rows]).expect("as many numbers as rows")
}
