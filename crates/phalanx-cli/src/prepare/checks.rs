//! Checks of data against a model.

use crate::data::{LoadedData, NamedSamples};
use crate::model_file::LossSource;
use crate::model_spec::{ModelKind, ModelSpec};
use crate::targets::same_shape;
use anyhow::{Context, Result, bail};
use phalanx::prelude::*;

/// Checks that text targets have a classification loss, and that binary losses have targets from 0 to 1.
pub(super) fn check_targets(
    spec: &ModelSpec,
    losses: &[&'static str],
    loaded: &LoadedData,
    loss_source: &LossSource,
) -> Result<()> {
    let ModelKind::File(file) = &spec.kind else { return Ok(()) };
    let inferred = matches!(loss_source, LossSource::Inferred { .. });
    let outputs = file.with_losses(losses);
    for (i, (name, y)) in loaded.train.targets.iter().enumerate() {
        let by_name = outputs.iter().find(|output| output.name == *name);
        let Some(output) = by_name.or(outputs.get(i)) else { continue };
        if loaded.text_targets.get(i) == Some(&true) {
            output.check_words()?;
        }
        if loaded.classes.is_none() {
            output.check_binary(y, inferred)?;
        }
    }
    Ok(())
}

/// The inputs of some data in the model's order. They have the keys or paths of the model's structure, or the names of its
/// input layers.
pub(super) fn inputs_by_name<T: Clone>(spec: &ModelSpec, given: &[(String, T)]) -> Result<Vec<T>> {
    by_path_or_name(given, spec.input_paths(), &spec.io_names().0)
}

fn by_path_or_name<T: Clone>(
    given: &[(String, T)],
    paths: Option<&[String]>,
    names: &[String],
) -> Result<Vec<T>> {
    let Some(paths) = paths else { return by_name("x", given, names) };
    if let Ok(inputs) = by_name("x", given, names)
        && !given.iter().all(|(name, _)| paths.contains(name))
    {
        return Ok(inputs);
    }
    by_name("x", given, paths).with_context(|| match paths == names {
        true => "the model takes a dict of inputs".to_string(),
        false => {
            format!("the model takes a dict of inputs, whose layers are {}", names.join(", "))
        }
    })
}

/// The targets of the outputs that are `wanted`. Those of other outputs are left out.
pub(super) fn targets_by_name(
    spec: &ModelSpec,
    part: &NamedSamples,
    wanted: &[String],
) -> Result<Vec<Tensor>> {
    let (_, outputs) = spec.io_names();
    let is_unused = |name| outputs.contains(name) && !wanted.contains(name);
    let given: Vec<(String, Tensor)> =
        part.targets.iter().filter(|(name, _)| !is_unused(name)).cloned().collect();
    by_name("y", &given, wanted)
}

/// Arrays in the model's order. A single array needs no name.
fn by_name<T: Clone>(role: &str, given: &[(String, T)], wanted: &[String]) -> Result<Vec<T>> {
    if let ([(name, one)], [only]) = (given, wanted)
        && (name.is_empty() || name == only)
    {
        return Ok(vec![one.clone()]);
    }
    let array_name = |name: &String| match name.is_empty() {
        true => role.to_string(),
        false => format!("{role}_{name}"),
    };
    let join = |names: Vec<String>| names.join(", ");
    let fail = || {
        let expected = join(wanted.iter().map(array_name).collect());
        let received = join(given.iter().map(|(name, _)| array_name(name)).collect());
        anyhow::anyhow!("expected {expected}, as the model names them, received {received}")
    };
    if given.len() != wanted.len() {
        return Err(fail());
    }
    let find =
        |name: &String| given.iter().find(|(given, _)| given == name).map(|(_, v)| v.clone());
    wanted.iter().map(|name| find(name).ok_or_else(fail)).collect()
}

/// The weights of each target, in the model's order; empty if none are given. Unnamed ones are for all targets.
pub(super) fn weights_by_name(
    given: &[(String, Tensor)],
    wanted: &[String],
) -> Result<Vec<Option<Tensor>>> {
    let find = |name: &String| {
        given.iter().find(|(given, _)| given == name || given.is_empty()).map(|(_, w)| w.clone())
    };
    if let Some((name, _)) = given.iter().find(|(n, _)| !n.is_empty() && !wanted.contains(n)) {
        let expected: Vec<String> = wanted.iter().map(|n| format!("sample_weight_{n}")).collect();
        bail!(
            "expected {}, as the model names its outputs, received sample_weight_{name}",
            expected.join(", ")
        );
    }
    Ok(if given.is_empty() { vec![] } else { wanted.iter().map(find).collect() })
}

/// Checks that arrays have the model's input shape, up to axes of size one and flattening.
pub fn check_shape(dims: &[usize], input: &[usize]) -> Result<()> {
    let flat = [dims, input].iter().any(|dims| dims.len() == 1)
        && dims.iter().product::<usize>() == input.iter().product::<usize>();
    if same_shape(dims, input) || flat {
        return Ok(());
    }
    bail!("expected samples of {input:?}, received {dims:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_not_transposed_or_resized_to_fit() {
        assert!(check_shape(&[28, 28], &[28, 28, 1]).is_ok());
        assert!(check_shape(&[28, 28, 1], &[784]).is_ok());
        for other in [[4, 2], [3, 2], [2, 5]] {
            assert!(check_shape(&other, &[2, 4]).is_err(), "{other:?}");
        }
    }

    #[test]
    fn inputs_of_a_dict_are_matched_by_key_path_or_layer() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let given = |names: &[&str]| -> Vec<(String, String)> {
            names.iter().map(|name| (name.to_string(), name.to_string())).collect()
        };
        let (paths, layers) = (names(&["p/0", "q"]), names(&["a", "b"]));
        let find = |names: &[&str]| by_path_or_name(&given(names), Some(&paths), &layers);
        assert_eq!(find(&["q", "p/0"]).unwrap(), ["p/0", "q"]);
        assert_eq!(find(&["b", "a"]).unwrap(), ["a", "b"]);
        let error = crate::format_error(&find(&["a", "q"]).unwrap_err());
        assert!(error.contains("whose layers are a, b"), "{error}");
        assert!(error.contains("expected x_p/0, x_q, as the model names them"), "{error}");
        // Keys that are names of other layers are keys.
        let crossed = names(&["b", "a"]);
        let of_keys = by_path_or_name(&given(&["a", "b"]), Some(&crossed), &layers).unwrap();
        assert_eq!(of_keys, ["b", "a"]);
    }

    #[test]
    fn weights_of_outputs_are_matched_by_name() {
        let wanted = ["a".to_string(), "b".to_string()];
        let of = |name: &str| (name.to_string(), Tensor::zeros([2, 3]));
        let weights = weights_by_name(&[of("b")], &wanted).unwrap();
        assert_eq!(weights, [None, Some(Tensor::zeros([2, 3]))]);
        assert!(weights_by_name(&[of("")], &wanted).unwrap().iter().all(Option::is_some));
        assert!(weights_by_name(&[], &wanted).unwrap().is_empty());
        let error = weights_by_name(&[of("c")], &wanted).unwrap_err().to_string();
        let expected = "expected sample_weight_a, sample_weight_b, as the model names its outputs, received sample_weight_c";
        assert_eq!(error, expected);
    }

    #[test]
    fn arrays_are_matched_by_name_and_a_single_one_needs_none() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let given = [("b".to_string(), 2), ("a".to_string(), 1)];
        assert_eq!(by_name("x", &given, &names(&["a", "b"])).unwrap(), [1, 2]);
        assert_eq!(by_name("x", &[(String::new(), 7)], &names(&["a"])).unwrap(), [7]);
        let error = by_name("y", &given[..1], &names(&["a"])).unwrap_err().to_string();
        assert_eq!(error, "expected y_a, as the model names them, received y_b");
        assert!(by_name("y", &given, &names(&["a"])).is_err());
        assert!(by_name("y", &given, &names(&["a", "c"])).is_err());
    }
}
