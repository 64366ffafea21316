//! Lowering of layers to a graph: the state of a model's lowering and the context of a layer's call.

use super::{Argument, Arguments, Layer, LayerHandle, MaskRule, Outputs, Weight, WeightSpec};
use crate::error::{Error, Result};
use crate::regularizers::Regularizer;
use phalanx_graph::text::shown;
use phalanx_graph::{DType, Graph, MAX_ELEMENTS, NodeId, ParamId, Scope, Space, Type};

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
    /// Weights that a wrapper replaces for the rest of the pass, without changing their stored values.
    replaced: Vec<(ParamId, NodeId)>,
    /// The nodes of the weights that were read, by parameter.
    read: Vec<Option<NodeId>>,
    /// Whether batch statistics are synchronized across replicas even if a layer does not request it.
    pub synchronized: bool,
    streams: u32,
    /// The calls of layers and sublayers so far.
    calls: usize,
}

/// The largest number of calls: wrappers repeat layers, so that a short file can describe a huge model.
const MAX_CALLS: usize = 1_000_000;

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
            replaced: vec![],
            read: vec![],
            synchronized: false,
            streams: 0,
            calls: 0,
        }
    }

    /// Returns the value of a parameter. As in Keras, a later call of a shared layer reads what an earlier call assigned.
    fn value(&mut self, param: ParamId) -> NodeId {
        let changed = self.assigns.iter().chain(&self.replaced).rev().find(|(p, _)| *p == param);
        if let Some((_, node)) = changed {
            return *node;
        }
        if self.read.len() <= param.index() {
            self.read.resize(param.index() + 1, None);
        }
        *self.read[param.index()].get_or_insert_with(|| self.graph.param(param))
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
    lowering: &'a mut Lowering,
    layer: &'a LayerHandle,
    name: &'a str,
    arguments: &'a Arguments<Operand>,
    /// The path of the sublayer that is called, empty for the layer itself.
    sublayer: String,
    frozen_sublayer: bool,
    /// The first weight of the layer or sublayer.
    first: usize,
    declared: usize,
}

impl LayerContext<'_> {
    /// Calls `layer` on this context's arguments, applies its mask rule and adds its activity penalty.
    fn run(&mut self, layer: &dyn Layer) -> Result<Vec<Operand>> {
        let outputs = self.run_call(layer)?;
        if let Some(regularizer) = layer.activity_penalty()? {
            for output in &outputs {
                self.regularize_activity(&regularizer, output.node)?;
            }
        }
        Ok(outputs)
    }

    /// The same without the penalty.
    fn run_call(&mut self, layer: &dyn Layer) -> Result<Vec<Operand>> {
        self.lowering.calls += 1;
        if self.lowering.calls > MAX_CALLS {
            let expected = format!("a model of at most {MAX_CALLS} calls");
            return Err(self.argument("calls", &expected, "more"));
        }
        self.check_arguments(layer)?;
        let operands = self.arguments.positional_tensors();
        let inputs: Vec<NodeId> = operands.iter().map(|operand| operand.node).collect();
        let Outputs { nodes, masks } = layer.call(self, &inputs)?;
        let passed = match layer.mask_rule() {
            MaskRule::Stop => None,
            MaskRule::Pass => self.mask(0),
        };
        let masks = masks.unwrap_or_else(|| vec![passed; nodes.len()]);
        Ok(nodes.into_iter().zip(masks).map(|(node, mask)| Operand { node, mask }).collect())
    }

    /// Calls a layer that this layer is made of. `attribute` is Keras' name for it. Its weights belong to this layer.
    ///
    /// # Errors
    /// If the sublayer refuses its arguments.
    pub fn call_sublayer(
        &mut self,
        attribute: &str,
        layer: &dyn Layer,
        trainable: bool,
        arguments: &Arguments<Operand>,
    ) -> Result<Vec<Operand>> {
        self.sublayer(attribute, layer, trainable, arguments, true)
    }

    /// Like [`call_sublayer`](Self::call_sublayer), without the penalty on the sublayer's outputs. Keras' `layer.call(x)`
    /// omits it, `layer(x)` does not.
    ///
    /// # Errors
    /// If the sublayer refuses its arguments.
    pub(crate) fn call_sublayer_inside(
        &mut self,
        attribute: &str,
        layer: &dyn Layer,
        trainable: bool,
        arguments: &Arguments<Operand>,
    ) -> Result<Vec<Operand>> {
        self.sublayer(attribute, layer, trainable, arguments, false)
    }

    /// Declares the weights of a layer of a nested model, which belong to this layer. Values that the layer has are kept.
    /// Returns the number of the first, counting from this layer's first.
    pub(crate) fn declare_weights_of(&mut self, path: &str, layer: &LayerHandle) -> Result<usize> {
        let first = self.declared - self.first;
        layer.sync_to_host()?;
        let weights: Vec<Weight> = layer.weights().clone();
        self.in_sublayer(path, layer.trainable(), |cx| {
            for weight in weights {
                cx.weight(weight.spec)?;
                if let Some(own) = cx.layer.weights().get_mut(cx.declared - 1)
                    && own.values.is_none()
                {
                    own.values = weight.values;
                }
            }
            Ok(first)
        })
    }

    /// Calls a layer of a nested model: its path and the number of its first weight, as
    /// [`declare_weights_of`](Self::declare_weights_of) returned it.
    pub(crate) fn call_sublayer_at(
        &mut self,
        (path, first): (&str, usize),
        layer: &LayerHandle,
        arguments: &Arguments<Operand>,
    ) -> Result<Vec<Operand>> {
        let declared = std::mem::replace(&mut self.declared, self.first + first);
        let out = self.sublayer(path, layer.layer(), layer.trainable(), arguments, true);
        self.declared = declared;
        out
    }

    fn sublayer(
        &mut self,
        attribute: &str,
        layer: &dyn Layer,
        trainable: bool,
        arguments: &Arguments<Operand>,
        regularize: bool,
    ) -> Result<Vec<Operand>> {
        self.in_sublayer(attribute, trainable, |cx| {
            let mut inner = LayerContext {
                lowering: &mut *cx.lowering,
                layer: cx.layer,
                name: cx.name,
                arguments,
                sublayer: cx.sublayer.clone(),
                frozen_sublayer: cx.frozen_sublayer,
                first: cx.first,
                declared: cx.declared,
            };
            let out = if regularize { inner.run(layer) } else { inner.run_call(layer) };
            cx.declared = inner.declared;
            out
        })
    }

    /// Makes the next weights the ones that this layer declared first, to call a sublayer again.
    pub fn reuse_weights(&mut self) {
        self.declared = self.first;
    }

    /// Runs `body` as part of a sublayer: the weights that it declares belong to that sublayer.
    ///
    /// # Errors
    /// Those of `body`.
    pub fn in_sublayer<T>(
        &mut self,
        attribute: &str,
        trainable: bool,
        body: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let separator = if self.sublayer.is_empty() { "" } else { "/" };
        let path = format!("{}{separator}{attribute}", self.sublayer);
        let outer = std::mem::replace(&mut self.sublayer, path);
        let (frozen, first) = (self.frozen_sublayer, self.first);
        self.frozen_sublayer |= !trainable;
        self.first = self.declared;
        let out = body(self);
        (self.sublayer, self.frozen_sublayer, self.first) = (outer, frozen, first);
        out
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

    /// Returns the graph so far.
    pub(crate) fn graph_ref(&self) -> &Graph {
        &self.lowering.graph
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
        let full_name = format!("{}/{}", self.name, spec.name);
        if spec.dims.contains(&0) {
            let dims = format!("{:?}", spec.dims);
            return Err(self.argument(&spec.name, "a shape without zeros", dims));
        }
        let len = spec.dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        if len.is_none_or(|n| n > MAX_ELEMENTS) {
            let dims = format!("{:?}", spec.dims);
            return Err(self.argument(&spec.name, "a shape that fits in memory", dims));
        }
        let mut weights = self.layer.weights();
        match weights.get_mut(index) {
            None => weights.push(Weight { spec: spec.clone(), values: None }),
            Some(existing) if existing.spec.dims == spec.dims => existing.spec = spec.clone(),
            Some(existing) => {
                let (expected, received) = (format!("{:?}", existing.spec.dims), &spec.dims);
                return Err(self.argument(
                    &spec.name,
                    &format!("the shape it was built with, {expected}"),
                    format!("{received:?}"),
                ));
            }
        }
        drop(weights);
        let declared =
            self.lowering.weights.iter().find(|w| w.layer.same(self.layer) && w.index == index);
        let param = match declared {
            Some(w) => w.param,
            None => {
                let trainable = spec.trainable && self.layer.trainable();
                let param = self.lowering.graph.add_param(&full_name, &spec.dims, trainable);
                self.lowering.weights.push(ModelWeight {
                    layer: self.layer.clone(),
                    layer_name: self.name.into(),
                    index,
                    param,
                });
                param
            }
        };
        Ok(self.lowering.value(param))
    }

    /// Returns the parameter of a weight that this layer or sublayer has declared.
    fn declared_param(&self, index: usize) -> Option<ParamId> {
        let index = self.first + index;
        let weights = &self.lowering.weights;
        weights.iter().find(|w| w.layer.same(self.layer) && w.index == index).map(|w| w.param)
    }

    /// Returns how many weights this layer or sublayer has declared so far.
    pub(crate) fn declared_weights(&self) -> usize {
        self.declared - self.first
    }

    /// Returns the declaration of a weight of this layer or sublayer.
    pub(crate) fn declared_weight(&self, index: usize) -> Option<WeightSpec> {
        let spec = |weight: &Weight| weight.spec.clone();
        (index < self.declared_weights())
            .then(|| self.layer.weights().get(self.first + index).map(spec))
            .flatten()
    }

    /// Lists a weight of a sublayer among the layer's own weights too, as Keras does for the kernel of a wrapped layer.
    pub(crate) fn list_twice(&mut self, index: usize) {
        if let Some(weight) = self.layer.weights().get_mut(self.first + index) {
            weight.spec.listed_twice = true;
        }
    }

    /// Returns the present value of a declared weight.
    pub(crate) fn weight_value(&mut self, index: usize) -> Option<NodeId> {
        self.declared_param(index).map(|param| self.lowering.value(param))
    }

    /// Replaces a declared weight for the rest of the pass. The stored weight stays as it is.
    pub(crate) fn replace_weight(&mut self, index: usize, value: NodeId) {
        let param = self.declared_param(index);
        self.lowering.replaced.extend(param.map(|param| (param, value)));
    }

    /// Adds a constant from the layer's config. It is not a weight and is never saved.
    ///
    /// # Panics
    /// If the number of values does not match `dims`.
    pub fn constant(&mut self, name: &str, dims: &[usize], values: Vec<f32>) -> NodeId {
        assert_eq!(dims.iter().product::<usize>(), values.len(), "{name} of shape {dims:?}");
        let full_name = format!("{}/{name}", self.name);
        let param = self.lowering.graph.add_param(&full_name, dims, false);
        self.lowering.constants.push((param, values));
        self.lowering.graph.param(param)
    }

    /// Assigns `value` to the layer's weight `index` at the end of the step.
    pub fn assign(&mut self, index: usize, value: NodeId) {
        let param = self.declared_param(index).expect("a layer assigns a weight it has declared");
        // The last call wins.
        self.lowering.assigns.retain(|(p, _)| *p != param);
        self.lowering.assigns.push((param, value));
    }

    /// Returns a random stream that only this call uses.
    pub fn stream(&mut self) -> u32 {
        self.lowering.streams += 1;
        self.lowering.streams
    }

    /// Returns the scope over which batch statistics are reduced.
    pub fn statistics(&self, synchronized: bool) -> Scope {
        if synchronized || self.lowering.synchronized { Scope::All } else { Scope::Device }
    }
}
