//! Lowering of layers to a graph: the state of a model's lowering and the context of a layer's call.

use super::integers::IntegerRecord;
use super::{Arguments, LayerHandle, Weight, WeightSpec};
use crate::error::{Error, Result};
use crate::regularizers::Regularizer;
use phalanx_graph::program::Policy;
use phalanx_graph::{DType, Graph, MAX_ELEMENTS, NodeId, ParamId, ParamSpec, Scope, Space, Type};
use std::collections::HashMap;

/// A value of a model under lowering: its node and its mask. A mask has one number per step of the value's sequence, 1 for
/// valid steps and 0 for padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// The value.
    pub node: NodeId,
    /// Its mask, if any.
    pub mask: Option<NodeId>,
}

impl From<NodeId> for Operand {
    fn from(node: NodeId) -> Operand {
        Operand { node, mask: None }
    }
}

/// A weight of a model: its graph parameter and the layer that holds its values.
#[derive(Clone, Debug)]
pub struct ModelWeight {
    /// The layer that declared the weight.
    pub layer: LayerHandle,
    /// The layer's name in this model.
    pub layer_name: String,
    /// Index in the layer's weights.
    pub index: usize,
    /// The graph parameter.
    pub param: ParamId,
}

/// The state of lowering a model to a graph, which the layers append to.
#[derive(Debug)]
pub struct Lowering {
    /// The graph.
    pub graph: Graph,
    /// Whether this is a training pass: dropout is active, batch norm uses batch statistics.
    pub training: bool,
    /// The weights declared so far, in order.
    pub weights: Vec<ModelWeight>,
    /// Assignments at the end of the step, such as moving statistics.
    pub assigns: Vec<(ParamId, NodeId)>,
    /// Constant parameters from layer configs, with their values.
    pub constants: Vec<(ParamId, Vec<f32>)>,
    /// Terms that layers add to the loss: one number per sample, or one for the whole batch.
    pub losses: Vec<NodeId>,
    pub(super) values: WeightValues,
    /// Whether some layers have mixed precision, so that layers with 32-bit floats must keep them.
    pub mixed: bool,
    /// Whether batch statistics are synchronized across replicas even if a layer does not request it.
    pub synchronized: bool,
    /// What is known about the sizes of its inputs.
    pub sizes: InputSizes,
    /// The values of the constants that are feeds, in the order of these feeds.
    pub fed_constants: Vec<Vec<f32>>,
    pub(super) record: Record,
}

/// What is known about the sizes of a model's inputs.
#[derive(Clone, Copy, Debug, Default)]
pub struct InputSizes {
    /// Whether the model is lowered for several of them. Constants, which may depend on them, then are feeds.
    pub open: bool,
    /// The size of every batch, if it is fixed.
    pub batch: Option<usize>,
}

/// What the weights are in this pass.
#[derive(Debug, Default)]
pub(super) struct WeightValues {
    /// Weights that a wrapper replaces for the rest of the pass, without changing their stored values.
    pub(super) replaced: Vec<(ParamId, NodeId)>,
    /// The nodes of the weights that were read, by parameter.
    read: Vec<Option<NodeId>>,
}

/// What the calls so far used and left behind.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// The number of random streams.
    streams: u32,
    /// The number of calls of layers and sublayers.
    pub calls: usize,
    /// Masks that a call changed after their value was computed.
    pub masks: HashMap<NodeId, Option<NodeId>>,
    /// Values `[n, ..]` whose shape in Keras is `(n, batch, ..)`.
    pub batch_second: Vec<NodeId>,
    /// Values that are integers.
    pub integers: IntegerRecord,
}

impl Lowering {
    /// Creates a lowering with an empty graph.
    pub fn new(training: bool) -> Lowering {
        Lowering {
            graph: Graph::new(),
            training,
            weights: vec![],
            assigns: vec![],
            constants: vec![],
            losses: vec![],
            values: WeightValues::default(),
            mixed: false,
            synchronized: false,
            sizes: InputSizes::default(),
            fed_constants: vec![],
            record: Record::default(),
        }
    }

    /// Declares the parameters of another step for the same devices, in their order. Constants of this step are feeds.
    pub(crate) fn share_parameters(&mut self, params: &[ParamSpec], weights: &[ModelWeight]) {
        for (index, param) in params.iter().enumerate() {
            let weight = weights.iter().find(|w| w.param.index() == index);
            let trainable = weight
                .is_some_and(|w| w.layer.trainable() && w.layer.weights()[w.index].spec.trainable);
            self.graph.add_param(&param.name, &param.dims, trainable);
        }
        self.weights = weights.to_vec();
        self.sizes.open = true;
    }

    /// Declares the weight `index` of a layer that is called `name` in this model, or finds it if an earlier call
    /// declared it, and returns its value.
    ///
    /// # Errors
    /// The weight, the shape it was built with, and the shape that is asked for.
    pub(crate) fn declare(
        &mut self,
        layer: &LayerHandle,
        name: &str,
        index: usize,
        spec: WeightSpec,
    ) -> Result<NodeId, (String, String, String)> {
        if let Some(regularizer) = &spec.regularizer {
            let checked = regularizer.check_weight(&spec.dims);
            checked.map_err(|(expected, received)| (spec.name.clone(), expected, received))?;
        }
        let mut weights = layer.weights();
        match weights.get_mut(index) {
            None => weights.push(Weight { spec: spec.clone(), values: None }),
            Some(existing) if existing.spec.dims == spec.dims => existing.spec = spec.clone(),
            Some(existing) => {
                let expected = format!("the shape it was built with, {:?}", existing.spec.dims);
                return Err((spec.name, expected, format!("{:?}", spec.dims)));
            }
        }
        drop(weights);
        let declared = self.weights.iter().find(|w| w.layer.same(layer) && w.index == index);
        let param = match declared {
            Some(w) => w.param,
            None => {
                let trainable = spec.trainable && layer.trainable();
                let full_name = format!("{name}/{}", spec.name);
                let param = self.graph.add_param(&full_name, &spec.dims, trainable);
                let (layer, layer_name) = (layer.clone(), name.into());
                self.weights.push(ModelWeight { layer, layer_name, index, param });
                param
            }
        };
        Ok(self.value(param))
    }

    /// Returns the value of a parameter. As in Keras, a later call of a shared layer reads what an earlier call assigned.
    pub(crate) fn value(&mut self, param: ParamId) -> NodeId {
        let changed =
            self.assigns.iter().chain(&self.values.replaced).rev().find(|(p, _)| *p == param);
        if let Some((_, node)) = changed {
            return *node;
        }
        let read = &mut self.values.read;
        if read.len() <= param.index() {
            read.resize(param.index() + 1, None);
        }
        *read[param.index()].get_or_insert_with(|| self.graph.param(param))
    }

    /// Assigns a value to a parameter at the end of the step. The last assignment counts.
    pub(crate) fn assign(&mut self, param: ParamId, value: NodeId) {
        self.assigns.retain(|(p, _)| *p != param);
        self.assigns.push((param, value));
    }

    /// A random stream that nothing else uses.
    pub(crate) fn stream(&mut self) -> u32 {
        self.record.streams += 1;
        self.record.streams
    }

    /// Changes the mask of a value for all later calls.
    pub(crate) fn set_mask(&mut self, value: NodeId, mask: Option<NodeId>) {
        self.record.masks.insert(value, mask);
    }

    /// A value with the mask that it has now.
    pub(crate) fn with_present_mask(&self, operand: Operand) -> Operand {
        let mask = self.record.masks.get(&operand.node).copied().unwrap_or(operand.mask);
        Operand { mask, ..operand }
    }

    /// Whether the batch of a value is its second axis in Keras.
    pub(crate) fn is_batch_second(&self, value: NodeId) -> bool {
        self.record.batch_second.contains(&value)
    }

    /// Calls a layer with one output on values without masks; `name` is its name in this model.
    ///
    /// # Errors
    /// If the layer refuses its inputs, or has several outputs.
    pub fn call(&mut self, layer: &LayerHandle, name: &str, inputs: &[NodeId]) -> Result<NodeId> {
        let inputs = inputs.iter().copied().map(Operand::from).collect();
        let positional = layer.layer().inputs_form().positional(inputs);
        let arguments = Arguments { positional, named: vec![] };
        match self.call_with(layer, name, &arguments)?[..] {
            [output] => Ok(output.node),
            ref outputs => {
                Err(Error::argument(format!("layer '{name}'"), "outputs", "1", outputs.len()))
            }
        }
    }

    /// Calls a layer; `name` is its name in this model.
    ///
    /// # Errors
    /// If the layer refuses its arguments.
    pub fn call_with(
        &mut self,
        layer: &LayerHandle,
        name: &str,
        arguments: &Arguments<Operand>,
    ) -> Result<Vec<Operand>> {
        let outer = self.graph.enter(name);
        if self.mixed && layer.dtype_policy() == Some(Policy::Float32) {
            self.graph.keep_wide();
        }
        let mut cx = LayerContext {
            lowering: self,
            layer,
            name,
            arguments,
            sublayer: String::new(),
            frozen_sublayer: false,
            first: 0,
            declared: 0,
        };
        let out = cx.run(layer.layer()).map_err(|e| match e {
            Error::Graph(g) => Error::Graph(g.in_layer(name)),
            other => other,
        });
        self.graph.enter(&outer);
        out
    }
}

/// The context of a layer's `call`: the graph, the arguments, the layer's weights and the mode.
pub struct LayerContext<'a> {
    pub(super) lowering: &'a mut Lowering,
    pub(super) layer: &'a LayerHandle,
    pub(super) name: &'a str,
    pub(super) arguments: &'a Arguments<Operand>,
    /// The path of the sublayer that is called, empty for the layer itself.
    pub(super) sublayer: String,
    pub(super) frozen_sublayer: bool,
    /// The first weight of the layer or sublayer.
    pub(super) first: usize,
    pub(super) declared: usize,
}

impl LayerContext<'_> {
    /// Adds a term to the loss of the model, in training and evaluation. A value with one number per sample counts with
    /// its mean over the batch, a value that all samples share as it is.
    ///
    /// # Errors
    /// If the value is not a single float, per sample or for all.
    pub fn add_loss(&mut self, value: NodeId) -> Result<()> {
        let ty = self.ty(value);
        let space = matches!(ty.space, Space::Rows | Space::Mirrored);
        if !space || !ty.dims.is_empty() || ty.dtype != DType::F32 {
            let expected = "one float per sample, or one for the whole batch";
            return Err(self.argument("loss term", expected, ty.clone()));
        }
        self.lowering.losses.push(value);
        Ok(())
    }

    /// Adds the penalty of a value to the loss, divided by the size of the batch.
    pub(crate) fn regularize_activity(
        &mut self,
        regularizer: &Regularizer,
        value: NodeId,
    ) -> Result<()> {
        if let Some((class, _)) = regularizer.as_custom() {
            let expected = "l1, l2 or l1_l2 (a custom class is for weights; a layer may add_loss)";
            return Err(self.argument("activity_regularizer", expected, class));
        }
        let axes: Vec<usize> = (0..self.dims(value).len()).collect();
        let graph = self.graph();
        let value = graph.cast(value, DType::F32)?;
        let penalty = regularizer.penalty(graph, value, &axes)?;
        match penalty {
            Some(penalty) => self.add_loss(penalty),
            None => Ok(()),
        }
    }

    /// Returns the graph to append to.
    pub fn graph(&mut self) -> &mut Graph {
        &mut self.lowering.graph
    }

    /// Returns the lowering of the model.
    pub(crate) fn lowering(&mut self) -> &mut Lowering {
        self.lowering
    }

    /// Returns the context of the same call with other arguments.
    pub(crate) fn with_arguments<'b>(
        &'b mut self,
        arguments: &'b Arguments<Operand>,
    ) -> LayerContext<'b> {
        LayerContext {
            lowering: self.lowering,
            layer: self.layer,
            name: self.name,
            arguments,
            sublayer: self.sublayer.clone(),
            frozen_sublayer: self.frozen_sublayer,
            first: self.first,
            declared: self.declared,
        }
    }

    /// Returns the layer's name in this model.
    pub fn name(&self) -> &str {
        self.name
    }

    /// Returns the dimensions of one sample of `x`.
    pub fn dims(&self, x: NodeId) -> Vec<usize> {
        self.lowering.graph.ty(x).dims.clone()
    }

    /// Returns the type of a value.
    pub fn ty(&self, x: NodeId) -> &Type {
        self.lowering.graph.ty(x)
    }

    /// Returns whether this is a training pass.
    pub fn training(&self) -> bool {
        self.lowering.training
    }

    /// Returns whether the layer is trainable. A frozen batch norm runs in inference mode.
    pub fn trainable(&self) -> bool {
        self.layer.trainable() && !self.frozen_sublayer
    }

    /// Creates an error about an argument of this layer.
    pub fn argument(&self, argument: &str, expected: &str, received: impl ToString) -> Error {
        Error::argument(format!("layer '{}'", self.name), argument, expected, received)
    }

    /// Declares the layer's next weight, or finds it if an earlier call declared it, and returns its value.
    pub fn weight(&mut self, mut spec: WeightSpec) -> Result<NodeId> {
        let index = self.declared;
        self.declared += 1;
        if !self.sublayer.is_empty() {
            spec.name = format!("{}/{}", self.sublayer, spec.name);
            spec.sublayer.clone_from(&self.sublayer);
            spec.trainable &= !self.frozen_sublayer;
        }
        self.check_weight_size(&spec.name, &spec.dims)?;
        let existing = self.layer.weights().get(index).cloned();
        if let Some(existing) = existing
            && self.lowering.sizes.open
            && existing.values.is_none()
            && existing.spec.dims != spec.dims
        {
            let received = format!("{:?} and {:?}", existing.spec.dims, spec.dims);
            let (layer, weight) = (self.name.into(), spec.name);
            return Err(Error::OpenWeight { layer, weight, received });
        }
        let declared = self.lowering.declare(self.layer, self.name, index, spec);
        declared.map_err(|(what, expected, received)| self.argument(&what, &expected, received))
    }

    /// Fails unless a weight of these dimensions can exist.
    pub(super) fn check_weight_size(&self, name: &str, dims: &[usize]) -> Result<()> {
        if dims.contains(&0) {
            return Err(self.argument(name, "a shape without zeros", format!("{dims:?}")));
        }
        let len = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        if len.is_none_or(|n| n > MAX_ELEMENTS) {
            return Err(self.argument(name, "a shape that fits in memory", format!("{dims:?}")));
        }
        Ok(())
    }

    /// Returns the parameter of a weight that this layer or sublayer has declared.
    pub(super) fn declared_param(&self, index: usize) -> Option<ParamId> {
        let index = self.first + index;
        let weights = &self.lowering.weights;
        weights.iter().find(|w| w.layer.same(self.layer) && w.index == index).map(|w| w.param)
    }

    /// Adds a constant from the layer's config. It is not a weight and is never saved.
    ///
    /// # Panics
    /// If the number of values does not match `dims`.
    pub fn constant(&mut self, name: &str, dims: &[usize], values: Vec<f32>) -> NodeId {
        assert_eq!(dims.iter().product::<usize>(), values.len(), "{name} of shape {dims:?}");
        let full_name = format!("{}/{name}", self.name);
        if self.lowering.sizes.open {
            let feed = self.lowering.graph.add_feed(&full_name, Type::mirrored(dims));
            self.lowering.fed_constants.push(values);
            return self.lowering.graph.feed(feed);
        }
        let param = self.lowering.graph.add_param(&full_name, dims, false);
        self.lowering.constants.push((param, values));
        self.lowering.graph.param(param)
    }

    /// Assigns `value` to the layer's weight `index` at the end of the step.
    pub fn assign(&mut self, index: usize, value: NodeId) {
        let param = self.declared_param(index).expect("a layer assigns a weight it has declared");
        self.lowering.assign(param, value);
    }

    /// Returns a random stream that only this call uses.
    pub fn stream(&mut self) -> u32 {
        self.lowering.stream()
    }

    /// Returns the scope over which batch statistics are reduced.
    pub fn statistics(&self, synchronized: bool) -> Scope {
        if synchronized || self.lowering.synchronized { Scope::All } else { Scope::Device }
    }
}
