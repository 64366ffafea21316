//! A layer's call: its arguments and their checks, its masks, and how it is run.

use super::{Argument, Arguments, Layer, LayerContext, MaskRule, Operand, Outputs};
use crate::error::Result;
use phalanx_graph::NodeId;
use phalanx_graph::text::shown;

/// The largest number of calls: wrappers repeat layers, so that a short file can describe a huge model.
const MAX_CALLS: usize = 1_000_000;

impl LayerContext<'_> {
    /// Calls `layer` on this context's arguments, applies its mask rule and adds its activity penalty.
    pub(super) fn run(&mut self, layer: &dyn Layer) -> Result<Vec<Operand>> {
        let outputs = self.run_call(layer)?;
        if let Some(regularizer) = layer.activity_penalty()? {
            for output in &outputs {
                self.regularize_activity(&regularizer, output.node)?;
            }
        }
        Ok(outputs)
    }

    /// The same without the penalty.
    pub(super) fn run_call(&mut self, layer: &dyn Layer) -> Result<Vec<Operand>> {
        self.lowering.record.calls += 1;
        if self.lowering.record.calls > MAX_CALLS {
            let expected = format!("a model of at most {MAX_CALLS} calls");
            return Err(self.argument("calls", &expected, "more"));
        }
        self.check_arguments(layer)?;
        self.check_batch_first(layer)?;
        let operands = self.arguments.positional_tensors();
        let inputs: Vec<NodeId> = operands.iter().map(|operand| operand.node).collect();
        let Outputs { nodes, masks } = layer.call(self, &inputs)?;
        let passed = match layer.mask_rule() {
            MaskRule::Stop => None,
            MaskRule::Pass => self.mask(0),
        };
        let masks = masks.unwrap_or_else(|| vec![passed; nodes.len()]);
        for (node, mask) in nodes.iter().zip(&masks) {
            // A layer that returns its input may give it a mask again.
            if let (Some(present), Some(_)) = (self.lowering.record.masks.get_mut(node), mask) {
                *present = *mask;
            }
        }
        Ok(nodes.into_iter().zip(masks).map(|(node, mask)| Operand { node, mask }).collect())
    }

    /// Removes the mask of a value for all later calls, as Keras' `MultiHeadAttention` does with its inputs.
    pub(crate) fn remove_mask(&mut self, value: NodeId) {
        self.lowering.set_mask(value, None);
    }

    /// Returns the arguments of the call.
    pub fn arguments(&self) -> &Arguments<Operand> {
        self.arguments
    }

    /// Returns the argument that `signature` calls `name`, passed by position or by name. Python's `None` counts as
    /// absent.
    pub fn passed(&self, signature: &[&str], name: &str) -> Option<&Argument<Operand>> {
        let position = signature.iter().position(|known| *known == name);
        let positional = position.and_then(|at| self.arguments.positional.get(at));
        positional.filter(|argument| !argument.is_none()).or_else(|| self.arguments.named(name))
    }

    /// Fails if the call has arguments that the layer does not take.
    fn check_arguments(&self, layer: &dyn Layer) -> Result<()> {
        let signature = layer.signature();
        let positional = &self.arguments.positional;
        let mut rest = positional.iter().skip(signature.len());
        let any_number = signature.contains(&"args");
        if !any_number && rest.any(|argument| !argument.is_none()) {
            let expected = format!("at most {} by position", signature.len());
            return Err(self.argument("arguments", &expected, positional.len()));
        }
        for (name, argument) in &self.arguments.named {
            let known = signature.contains(&name.as_str());
            // Whether the model trains or predicts decides, as in Keras.
            if known || argument.is_none() || matches!(name.as_str(), "training" | "mask") {
                continue;
            }
            let expected = format!("one of {}", signature.join(", "));
            return Err(self.argument("arguments", &expected, shown(name)));
        }
        Ok(())
    }

    /// Fails if the batch of an argument is its second axis in Keras, unless the layer removes the first.
    fn check_batch_first(&self, layer: &dyn Layer) -> Result<()> {
        let marked = &self.lowering.record.batch_second;
        if marked.is_empty() || crate::ops::removes_first_axis(layer) {
            return Ok(());
        }
        let mut found = None;
        self.arguments.for_each_tensor(&mut |operand| {
            found = found.or(marked.contains(&operand.node).then_some(operand.node));
        });
        found.map_or(Ok(()), |node| {
            let expected = "a value whose first axis is the batch; x[0] is one";
            let received = format!("{:?}, whose second axis it is", self.dims(node));
            Err(self.argument("inputs", expected, received))
        })
    }

    /// Says that the batch of a value `[n, ..]` is its second axis in Keras.
    pub(crate) fn batch_second(&mut self, value: NodeId) {
        self.lowering.record.batch_second.push(value);
    }

    /// Returns whether the batch of a value is its second axis in Keras.
    pub(crate) fn is_batch_second(&self, value: NodeId) -> bool {
        self.lowering.is_batch_second(value)
    }

    /// Returns the mask of an input: the argument `mask` if the call has one, else the input's own.
    pub fn mask(&self, input: usize) -> Option<NodeId> {
        match self.arguments.named("mask") {
            Some(Argument::Tensor(mask)) if input == 0 => return Some(mask.node),
            Some(Argument::List(masks)) => {
                if let Some(Argument::Tensor(mask)) = masks.get(input) {
                    return Some(mask.node);
                }
            }
            _ => {}
        }
        self.arguments.positional_tensors().get(input).and_then(|operand| operand.mask)
    }
}
