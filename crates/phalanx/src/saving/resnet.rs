//! Layer names of the two official weight files of ResNet50.

/// Whether a name is used in the older file.
pub(crate) fn is_old_name(name: &str) -> bool {
    current_name(name) != name
}

/// The current name of a layer of the older file: `res2a_branch2b` is `conv2_block1_2_conv`. Other names
/// stay unchanged.
pub(crate) fn current_name(name: &str) -> String {
    let whole = match name {
        "conv1" => Some("conv1_conv"),
        "bn_conv1" => Some("conv1_bn"),
        "fc1000" => Some("predictions"),
        _ => None,
    };
    whole.map(str::to_string).or_else(|| block_name(name)).unwrap_or_else(|| name.into())
}

fn block_name(name: &str) -> Option<String> {
    let (rest, kind) = match name.strip_prefix("res") {
        Some(rest) => (rest, "conv"),
        None => (name.strip_prefix("bn")?, "bn"),
    };
    let (stage_and_block, branch) = rest.split_once("_branch")?;
    let mut letters = stage_and_block.chars();
    let (stage, block) = (letters.next()?.to_digit(10)?, letters.next()?);
    if letters.next().is_some() || !block.is_ascii_lowercase() {
        return None;
    }
    let part = match branch {
        "1" => 0,
        "2a" => 1,
        "2b" => 2,
        "2c" => 3,
        _ => return None,
    };
    let block = u32::from(block) - u32::from('a') + 1;
    Some(format!("conv{stage}_block{block}_{part}_{kind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_names_become_current_ones_and_others_stay() {
        for (old, current) in [
            ("conv1", "conv1_conv"),
            ("bn_conv1", "conv1_bn"),
            ("fc1000", "predictions"),
            ("res2a_branch1", "conv2_block1_0_conv"),
            ("bn4f_branch2c", "conv4_block6_3_bn"),
        ] {
            assert_eq!(current_name(old), current);
            assert!(is_old_name(old) && !is_old_name(current));
        }
        for name in ["dense", "res2", "res2a_branch9", "bn", "resxa_branch1", ""] {
            assert_eq!(current_name(name), name);
        }
    }
}
