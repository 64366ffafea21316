//! Layers that are made of other layers: how a layer calls them, and what it may do with their weights.

use super::{Arguments, Layer, LayerContext, LayerHandle, Operand, Weight, WeightSpec};
use crate::error::Result;
use phalanx_graph::NodeId;

impl LayerContext<'_> {
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
        self.lowering.values.replaced.extend(param.map(|param| (param, value)));
    }
}
