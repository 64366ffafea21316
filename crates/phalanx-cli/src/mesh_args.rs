//! `--mesh` and `--layout`: replicas of several devices.

use crate::config::read_small_file;
use anyhow::{Context, Result, bail};
use phalanx::prelude::*;
use phalanx::text::shown;
use std::path::Path;
use std::str::FromStr;

/// Axes of a mesh, as in `data=2,model=4`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshArg {
    /// Replicas; `None` for as many as there are devices for.
    pub data: Option<usize>,
    /// Devices of each replica, and the name of their axis.
    pub model: Option<(String, usize)>,
    /// The name of the batch axis.
    data_name: String,
}

/// A mesh to plan for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeshChoice {
    /// The best one.
    Auto,
    /// This one.
    Axes(MeshArg),
}

impl FromStr for MeshChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<MeshChoice, String> {
        match text {
            "auto" => Ok(MeshChoice::Auto),
            axes => axes.parse().map(MeshChoice::Axes),
        }
    }
}

impl FromStr for MeshArg {
    type Err = String;

    fn from_str(text: &str) -> Result<MeshArg, String> {
        let expected = || "expected axes such as data=2,model=4 or data=*".to_string();
        let axis = |part: &str| {
            let (name, size) = part.split_once('=').ok_or_else(expected)?;
            let size = match size {
                "*" => None,
                n => Some(n.parse::<usize>().ok().filter(|n| *n > 0).ok_or_else(expected)?),
            };
            if name.is_empty() { Err(expected()) } else { Ok((name.to_string(), size)) }
        };
        let axes: Vec<(String, Option<usize>)> =
            text.split(',').map(axis).collect::<Result<_, _>>()?;
        match &axes[..] {
            [(name, data)] => Ok(MeshArg { data: *data, model: None, data_name: name.clone() }),
            [(name, data), (other, Some(model))] if name != other => Ok(MeshArg {
                data: *data,
                model: Some((other.clone(), *model)),
                data_name: name.clone(),
            }),
            _ => Err(expected()),
        }
    }
}

impl MeshArg {
    /// Devices of each replica.
    pub fn devices_per_replica(&self) -> usize {
        self.model.as_ref().map_or(1, |(_, size)| *size)
    }

    /// The devices of this process, of `workers` that divide the replicas; `found` devices are visible by default.
    pub fn local_devices(&self, workers: usize, found: usize) -> Result<usize> {
        let each = self.devices_per_replica();
        let replicas = match self.data {
            None => (found / each).max(1),
            Some(n) if n.is_multiple_of(workers) => n / workers,
            Some(n) => {
                let axis = shown(&self.data_name);
                bail!("--mesh: expected a multiple of the {workers} workers, received {axis}={n}")
            }
        };
        Ok(replicas * each)
    }

    /// The strategy on these devices, which divide what the layout file says.
    pub fn strategy(
        &self,
        strategy: MirroredStrategy,
        layout: Option<&Path>,
    ) -> Result<MirroredStrategy> {
        let Some((name, model)) = &self.model else {
            if layout.is_some() {
                bail!("--layout: expected a mesh with a second axis (--mesh data=1,model=2)");
            }
            return Ok(strategy);
        };
        let Some(path) = layout else {
            bail!(
                "--mesh {}=…,{name}={model}: expected --layout FILE, which says what {name} divides",
                self.data_name
            )
        };
        let devices = strategy.devices().len();
        if !devices.is_multiple_of(*model) {
            bail!("--mesh: expected a multiple of {name}={model} devices, received {devices}");
        }
        let mesh =
            DeviceMesh::new([devices / model, *model], [&self.data_name, name].map(String::clone))?;
        let layout = read_layout(&mesh, path)?;
        Ok(ModelParallel::on(strategy, layout)?.into())
    }
}

impl MeshArg {
    /// The names of the axes.
    pub fn names(&self) -> [String; 2] {
        let model = self.model.as_ref().map_or("model", |(name, _)| name);
        [self.data_name.clone(), model.to_string()]
    }
}

/// Reads a layout file: TOML with a list of axes for each path or expression, where `-` stands for none.
pub fn read_layout(mesh: &DeviceMesh, path: &Path) -> Result<LayoutMap> {
    let file = || format!("--layout: {}", shown(path.display()));
    let table: toml::Table =
        read_small_file("--layout", path)?.parse().map_err(|error: toml::de::Error| {
            anyhow::anyhow!("{}: expected TOML: {}", file(), error.message())
        })?;
    let mut layout = LayoutMap::new(mesh);
    for (key, value) in &table {
        let axes = value.as_array().and_then(|all| all.iter().map(toml::Value::as_str).collect());
        let Some(axes) = axes else {
            bail!(
                "{}: '{}': expected a list of axes, such as [\"-\", \"model\"]",
                file(),
                shown(key)
            );
        };
        let axes: Vec<&str> = axes;
        let axes = axes.into_iter().map(|name| Some(name).filter(|name| *name != "-"));
        layout = layout.insert(key, axes).with_context(file)?;
    }
    Ok(layout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meshes_have_a_data_axis_and_perhaps_another() {
        let parsed = |text: &str| text.parse::<MeshArg>();
        let two = parsed("data=2,model=4").unwrap();
        assert_eq!((two.data, two.devices_per_replica()), (Some(2), 4));
        assert_eq!(two.local_devices(1, 1).unwrap(), 8);
        assert_eq!(two.local_devices(2, 1).unwrap(), 4);
        assert!(two.local_devices(3, 1).unwrap_err().to_string().contains("received data=2"));
        let any = parsed("data=*,model=2").unwrap();
        assert_eq!((any.local_devices(1, 8).unwrap(), any.local_devices(4, 1).unwrap()), (8, 2));
        assert_eq!(parsed("batch=3").unwrap().devices_per_replica(), 1);
        for bad in
            ["", "2", "data", "data=0", "data=2,data=2", "data=2,model=*", "a=1,b=2,c=3", "=2"]
        {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }
}
