//! Updates with prescribed gradients.

use super::Case;
use phalanx::error::Result;
use phalanx::losses::Common as LossCommon;
use phalanx::optimizers;
use phalanx::prelude::*;
use phalanx_graph::{Graph, NodeId};
use serde_json::{Map, Value};

/// `Σ y_true · y_pred`: the target is the derivative.
#[derive(Debug)]
struct Product(LossCommon);

impl Loss for Product {
    fn class_name(&self) -> &'static str {
        "Product"
    }

    fn config(&self) -> Map<String, Value> {
        Map::new()
    }

    fn common(&self) -> &LossCommon {
        &self.0
    }

    fn common_mut(&mut self) -> &mut LossCommon {
        &mut self.0
    }

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let product = g.mul(y_true, y_pred)?;
        let sum = g.sum_axes(product, &[0])?;
        Ok(g.reshape(sum, &[])?)
    }
}

/// A kernel of 4x3 and a bias of 3, trained with prescribed gradients.
pub struct Trainer(pub Model);

impl Trainer {
    pub fn new(case: &Case<'_>, strategy: MirroredStrategy) -> Trainer {
        let model = Sequential::new().add(Input::new([4])).add(Dense::new(3)).build();
        let mut model = model.expect("a model");
        let optimizer = optimizers::from_config(case.class_name(), case.config());
        let common = LossCommon { name: "product".into(), reduction: Reduction::Sum };
        let compile = Compile::new(optimizer.expect(case.name)).loss(Product(common));
        model.compile(compile.strategy(strategy)).expect(case.name);
        model.set_weights(&["var/0", "var/1"].map(|v| case.tensor(v).clone())).expect(case.name);
        Trainer(model)
    }

    /// One update with these gradients: a row for each row of the kernel, all of which also reach the bias, and
    /// one that corrects the bias.
    pub fn apply(&mut self, kernel: &[f32], bias: &[f32]) {
        let mut x = vec![0.0; 5 * 4];
        (0..4).for_each(|i| x[i * 4 + i] = 1.0);
        let rest = |i: usize| bias[i] - kernel.iter().skip(i).step_by(3).sum::<f32>();
        let y = [kernel, &[0, 1, 2].map(rest)].concat();
        let (x, y) = (Tensor::new([5, 4], x).unwrap(), Tensor::new([5, 3], y).unwrap());
        self.0.train_on_batch(&x, &y).expect("a step");
    }

    pub fn weights(&self) -> Vec<Tensor> {
        self.0.get_weights().expect("weights")
    }
}
