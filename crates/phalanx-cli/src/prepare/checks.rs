//! Checks of data against a model.

use crate::data::LoadedData;
use crate::model_file::LossSource;
use crate::model_spec::{ModelKind, ModelSpec};
use crate::targets::same_shape;
use anyhow::{Result, bail};

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

/// Arrays in the model's order. A single array needs no name.
pub(super) fn by_name<T: Clone>(
    role: &str,
    given: &[(String, T)],
    wanted: &[String],
) -> Result<Vec<T>> {
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
