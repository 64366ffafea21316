//! The order in which Keras lists the layers of a model and numbers their weights.
//!
//! Python recomputes the order when it loads a file, so files must follow it. Layers far from the
//! outputs (by the longest path) come first. Layers of equal depth are in the order in which a
//! depth-first walk from the outputs through the operands first visits them.

use crate::layer::LayerHandle;
use crate::model::{Call, Callee, Definition, ModelKind};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// An entry of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListEntry {
    /// A member of the model.
    Member(usize),
    /// An input that no output depends on.
    Unused(usize),
}

/// The members of a model in Keras' order, including inputs.
pub(super) fn order(def: &Definition) -> Vec<ListEntry> {
    let first = first_visits(def);
    let depth = depths(def);
    let mut entries: Vec<(usize, i64, ListEntry)> = vec![];
    let used: HashSet<*const Call> = def.calls.iter().map(|p| Arc::as_ptr(&p.call)).collect();
    for (i, input) in def.inputs.iter().enumerate().filter(|(_, s)| !used.contains(&s.id())) {
        debug_assert!(matches!(input.call.callee, Callee::Input(_)));
        entries.push((0, -1, ListEntry::Unused(i)));
    }
    for i in 0..def.members.len() {
        entries.push((depth[i], first[i], ListEntry::Member(i)));
    }
    entries.sort_by_key(|(depth, first, _)| (std::cmp::Reverse(*depth), *first));
    entries.into_iter().map(|(_, _, entry)| entry).collect()
}

/// The layers of a model, including those of nested models, each once, in Keras' order.
pub(crate) fn layers(def: &Definition) -> Vec<LayerHandle> {
    fn collect(def: &Definition, seen: &mut HashSet<*const ()>, out: &mut Vec<LayerHandle>) {
        for entry in order(def) {
            let ListEntry::Member(i) = entry else { continue };
            match &def.members[i].callee {
                Callee::Input(_) => {}
                Callee::Layer(layer) => {
                    if seen.insert(identity(layer)) {
                        out.push(layer.clone());
                    }
                }
                Callee::Model(inner) => collect(inner, seen, out),
            }
        }
    }
    let mut out = vec![];
    collect(def, &mut HashSet::new(), &mut out);
    out
}

/// The members of a model in the order in which files list them, with their names. Inputs are listed
/// only for models that are not chains.
pub(in crate::saving) fn listed(def: &Definition) -> Vec<(String, Option<&Callee>)> {
    let chain = is_chain(def);
    let member = |entry| match entry {
        ListEntry::Member(i) => (def.members[i].name.clone(), Some(&def.members[i].callee)),
        ListEntry::Unused(i) => (def.input_name(i), None),
    };
    let hidden = |callee: &Option<&Callee>| chain && matches!(callee, Some(Callee::Input(_)));
    order(def).into_iter().map(member).filter(|(_, callee)| !hidden(callee)).collect()
}

/// Identifies a layer.
pub(super) fn identity(layer: &LayerHandle) -> *const () {
    let instance: &crate::layer::LayerInstance = layer;
    std::ptr::from_ref(instance).cast()
}

/// Whether a model is a chain: every member is called once, on the output of the previous one.
pub(super) fn is_chain(def: &Definition) -> bool {
    let chained = |pair: &[crate::model::ModelCall]| {
        let before = Arc::as_ptr(&pair[0].call);
        matches!(&pair[1].call.inputs[..], [x] if x.id() == before && x.output == 0)
    };
    let last = def.calls.last().map(|p| Arc::as_ptr(&p.call));
    def.kind() == ModelKind::Sequential
        && def.members.len() == def.calls.len()
        && def.inputs.len() == 1
        && def.calls.first().is_some_and(|p| Arc::as_ptr(&p.call) == def.inputs[0].id())
        && def.calls.windows(2).all(chained)
        && matches!(&def.outputs[..], [y] if Some(y.id()) == last && y.output == 0)
}

/// For each member: when the walk first visits it.
fn first_visits(def: &Definition) -> Vec<i64> {
    let member: HashMap<*const Call, usize> =
        def.calls.iter().map(|p| (Arc::as_ptr(&p.call), p.member)).collect();
    let mut first = vec![i64::MAX; def.members.len()];
    let mut met = 0;
    let mut entered: HashSet<*const Call> = HashSet::new();
    let mut stack: Vec<&Arc<Call>> = vec![];
    for output in &def.outputs {
        stack.push(&output.call);
        while let Some(call) = stack.pop() {
            if !entered.insert(Arc::as_ptr(call)) {
                continue;
            }
            let index = &mut first[member[&Arc::as_ptr(call)]];
            if *index == i64::MAX {
                *index = met;
                met += 1;
            }
            // The last operand is pushed first, so that the first is popped first.
            stack.extend(call.inputs.iter().rev().map(|s| &s.call));
        }
    }
    first
}

/// For each member: its longest path to an output, as Keras computes it.
fn depths(def: &Definition) -> Vec<usize> {
    let mut of_call: HashMap<*const Call, usize> = HashMap::new();
    let mut of_member = vec![0; def.members.len()];
    for placed in def.calls.iter().rev() {
        let depth = of_call.get(&Arc::as_ptr(&placed.call)).copied().unwrap_or(0);
        // The depth of a shared layer is that of its deepest call.
        let depth = depth.max(of_member[placed.member]);
        of_member[placed.member] = depth;
        for operand in &placed.call.inputs {
            let below = of_call.entry(operand.id()).or_default();
            *below = (*below).max(depth + 1);
        }
    }
    of_member
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::LayerExt;
    use crate::layers::{Add, Dense};
    use crate::model::{Apply, Input, Model};

    fn names(model: &Model) -> Vec<String> {
        let def = model.definition();
        let name = |entry| match entry {
            ListEntry::Member(i) => def.members[i].name.clone(),
            ListEntry::Unused(i) => def.input_name(i),
        };
        order(def).into_iter().map(name).collect()
    }

    #[test]
    fn far_from_the_output_comes_first_then_the_order_of_the_walk() {
        let x = Input::new([4]).named("x").symbol();
        let unused = Input::new([2]).named("unused").symbol();
        let long = Dense::new(4).named("long_1").apply(&x);
        let long = Dense::new(4).named("long_2").apply(&long);
        let short = Dense::new(4).named("short").apply(&x);
        let y = Add::new().named("sum").apply([&short, &long]);
        let model = Model::new([&x, &unused], &y).unwrap();
        assert_eq!(names(&model), ["x", "long_1", "short", "long_2", "unused", "sum"]);
    }

    #[test]
    fn a_shared_layer_is_as_deep_as_its_deepest_call() {
        let shared = Dense::new(4).named("shared");
        let x = Input::new([4]).named("x").symbol();
        let a = shared.apply(&x);
        let b = Dense::new(4).named("between").apply(&a);
        let model = Model::new(&x, [&shared.apply(&b), &a]).unwrap();
        assert_eq!(names(&model), ["x", "shared", "between"]);
        assert!(!is_chain(model.definition()));
    }
}
