//! Meshes of devices, and which axis of each weight their model axis divides.

use super::visible::MAX_THREADS;
use crate::error::{Error, Result, edit_distance};
use phalanx_graph::text::shown;
use phalanx_graph::{ParamId, ParamSpec};
use regex::Regex;
use std::fmt;

const MESH: &str = "DeviceMesh";
const MAP: &str = "LayoutMap";

/// The devices of a strategy, arranged along named axes. An axis divides the batch; another one, if any, divides
/// the work on each sample.
///
/// ```
/// use phalanx::prelude::*;
///
/// let mesh = DeviceMesh::new([2, 4], ["batch", "model"])?;
/// assert_eq!(mesh.num_devices(), 8);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceMesh {
    axes: Vec<(String, usize)>,
}

impl DeviceMesh {
    /// A mesh with these sizes and names of axes, the outermost first.
    ///
    /// # Errors
    /// No axis, one without devices, more than two axes, a repeated name, or too many devices.
    pub fn new<S: Into<String>>(
        shape: impl IntoIterator<Item = usize>,
        axis_names: impl IntoIterator<Item = S>,
    ) -> Result<DeviceMesh> {
        let shape: Vec<usize> = shape.into_iter().collect();
        let names: Vec<String> = axis_names.into_iter().map(Into::into).collect();
        if shape.len() != names.len() {
            let received = format!("{} sizes and {} names", shape.len(), names.len());
            return Err(Error::argument(MESH, "axis_names", "a name for each size", received));
        }
        if !(1..=2).contains(&shape.len()) {
            return Err(Error::argument(MESH, "shape", "one or two axes", shape.len()));
        }
        if names[1..].contains(&names[0]) {
            return Err(Error::argument(MESH, "axis_names", "different names", shown(&names[0])));
        }
        let devices = shape.iter().try_fold(1usize, |n, size| n.checked_mul(*size));
        match devices {
            Some(n) if (1..=MAX_THREADS).contains(&n) => {
                Ok(DeviceMesh { axes: names.into_iter().zip(shape).collect() })
            }
            _ => {
                let expected = format!("1 to {MAX_THREADS} devices");
                Err(Error::argument(MESH, "shape", expected, format!("{shape:?}")))
            }
        }
    }

    /// The number of devices.
    pub fn num_devices(&self) -> usize {
        self.axes.iter().map(|(_, size)| size).product()
    }

    /// The names of the axes.
    pub fn axis_names(&self) -> impl Iterator<Item = &str> {
        self.axes.iter().map(|(name, _)| name.as_str())
    }

    /// The sizes of the batch axis and of the other one, and the name of the latter.
    ///
    /// # Errors
    /// No axis of this name, or a batch axis that is not the outermost.
    pub(super) fn split(&self, batch_dim: Option<&str>) -> Result<(usize, usize, Option<&str>)> {
        let names = || self.axis_names().collect::<Vec<_>>().join(", ");
        let (first, size) = &self.axes[0];
        match (batch_dim, self.axes.get(1)) {
            (Some(name), _) if !self.axis_names().any(|n| n == name) => {
                let received = shown(name);
                Err(Error::argument("ModelParallel", "batch_dim_name", names(), received))
            }
            (Some(name), _) if name != first => {
                let expected = format!("the outermost axis, '{}'", shown(first));
                Err(Error::argument("ModelParallel", "batch_dim_name", expected, shown(name)))
            }
            (_, None) => Ok((*size, 1, None)),
            (_, Some((name, model))) => Ok((*size, *model, Some(name))),
        }
    }
}

impl fmt::Display for DeviceMesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes = self.axes.iter().map(|(name, size)| format!("{}={size}", shown(name)));
        f.write_str(&axes.collect::<Vec<_>>().join(","))
    }
}

/// Which axes of which weights the devices divide. A key is the path of a weight in Keras, such as `dense/kernel`, or a
/// regular expression that matches whole paths. Weights without a layout are copied to every device.
///
/// ```
/// use phalanx::prelude::*;
///
/// let mesh = DeviceMesh::new([2, 4], ["batch", "model"])?;
/// let layout = LayoutMap::new(&mesh)
///     .insert(".*/ffn_up/kernel", [None, Some("model")])?
///     .insert(".*/ffn_down/kernel", [Some("model"), None])?;
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LayoutMap {
    mesh: DeviceMesh,
    entries: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    key: String,
    pattern: Option<Regex>,
    axes: Vec<Option<String>>,
}

impl PartialEq for LayoutMap {
    fn eq(&self, other: &LayoutMap) -> bool {
        let parts = |e: &Entry| (e.key.clone(), e.axes.clone());
        self.mesh == other.mesh
            && self.entries.iter().map(parts).eq(other.entries.iter().map(parts))
    }
}

impl Eq for LayoutMap {}

impl LayoutMap {
    /// A map without entries.
    pub fn new(mesh: &DeviceMesh) -> LayoutMap {
        LayoutMap { mesh: mesh.clone(), entries: vec![] }
    }

    /// The devices.
    pub fn device_mesh(&self) -> &DeviceMesh {
        &self.mesh
    }

    /// The same layout on a mesh of other sizes.
    pub(crate) fn resized(&self, data: usize, model: usize) -> Result<LayoutMap> {
        let names = self.mesh.axis_names();
        let mesh = DeviceMesh::new([data, model][..self.mesh.axes.len()].iter().copied(), names)?;
        Ok(LayoutMap { mesh, entries: self.entries.clone() })
    }

    /// Adds the layout of the weights that a key matches: for every axis of the weight the axis of the mesh that divides
    /// it, or `None`.
    ///
    /// # Errors
    /// A key that is there already, an axis that the mesh lacks, or more than one axis of the weight that is divided.
    pub fn insert<'a>(
        mut self,
        key: &str,
        axes: impl IntoIterator<Item = Option<&'a str>>,
    ) -> Result<LayoutMap> {
        let axes: Vec<Option<String>> = axes.into_iter().map(|a| a.map(str::to_string)).collect();
        let at = format!("'{}'", shown(key));
        if self.entries.iter().any(|entry| entry.key == key) {
            return Err(Error::argument(MAP, &at, "one layout", "another one"));
        }
        let known = |name: &&String| self.mesh.axis_names().any(|n| n == name.as_str());
        if let Some(other) = axes.iter().flatten().find(|name| !known(name)) {
            let names = self.mesh.axis_names().collect::<Vec<_>>().join(", ");
            return Err(Error::argument(
                MAP,
                &at,
                format!("axes of the mesh: {names}"),
                shown(other),
            ));
        }
        if axes.iter().flatten().count() > 1 {
            let received = format!("{}", axes.iter().flatten().count());
            return Err(Error::argument(MAP, &at, "at most one axis that is divided", received));
        }
        // A key that is no expression can still be a path.
        let pattern = Regex::new(&format!("^(?:{key})$")).ok();
        self.entries.push(Entry { key: key.into(), pattern, axes });
        Ok(self)
    }

    /// The entry for a weight, by Keras' path or by its name in files: that with this key, or the one whose expression
    /// matches.
    fn entry(&self, paths: [&str; 2]) -> Result<Option<usize>> {
        let [path, _] = paths;
        if let Some(at) = self.entries.iter().position(|e| paths.contains(&e.key.as_str())) {
            return Ok(Some(at));
        }
        let matches = |entry: &Entry| {
            entry.pattern.as_ref().is_some_and(|p| paths.iter().any(|path| p.is_match(path)))
        };
        let found: Vec<usize> =
            (0..self.entries.len()).filter(|i| matches(&self.entries[*i])).collect();
        match found[..] {
            [] => Ok(None),
            [one] => Ok(Some(one)),
            _ => {
                let keys: Vec<String> =
                    found.iter().map(|i| format!("'{}'", shown(&self.entries[*i].key))).collect();
                let what = format!("'{}'", shown(path));
                Err(Error::argument(MAP, &what, "one layout", keys.join(" and ")))
            }
        }
    }

    /// Marks the axis of each parameter that the model axis of the mesh divides. `weights` are the weights of the model
    /// with their paths.
    ///
    /// # Errors
    /// A key without a weight, a weight with two layouts or another number of axes, or an axis that the batch axis of the
    /// mesh would divide.
    pub(crate) fn partition(
        &self,
        params: &mut [ParamSpec],
        weights: &[(ParamId, String)],
    ) -> Result<()> {
        let (_, parts, model) = self.mesh.split(None)?;
        let mut used = vec![false; self.entries.len()];
        for (id, path) in weights {
            let spec = &mut params[id.index()];
            let Some(at) = self.entry([path, &spec.name])? else { continue };
            used[at] = true;
            let axes = &self.entries[at].axes;
            let what = format!("'{}'", shown(path));
            if axes.len() != spec.dims.len() {
                let expected = format!("a layout of {} axes", spec.dims.len());
                return Err(Error::argument(MAP, &what, expected, axes.len()));
            }
            let Some(axis) = axes.iter().position(Option::is_some) else { continue };
            if axes[axis].as_deref() != model {
                let expected = "the model axis, or shard(Shard::Weights) for the batch axis";
                let received = axes[axis].as_deref().map(shown).map(|n| n.to_string());
                return Err(Error::argument(MAP, &what, expected, received.unwrap_or_default()));
            }
            if !spec.dims[axis].is_multiple_of(parts) {
                let expected = format!("a multiple of {}={parts}", shown(model.unwrap_or("model")));
                let what = format!("axis {axis} of {what}");
                return Err(Error::argument(MAP, &what, expected, spec.dims[axis]));
            }
            spec.partition_axis = Some(axis);
        }
        let Some(unused) = used.iter().position(|used| !used) else { return Ok(()) };
        let key = &self.entries[unused].key;
        let names: Vec<&str> = weights.iter().map(|(_, path)| path.as_str()).collect();
        let nearest = names.iter().min_by_key(|name| edit_distance(key, name));
        let nearest = nearest.map(|name| format!(" (nearest: '{}')", shown(name)));
        let received = format!("none{}", nearest.unwrap_or_default());
        Err(Error::argument(MAP, format!("'{}'", shown(key)), "to match a weight", received))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh() -> DeviceMesh {
        DeviceMesh::new([2, 4], ["batch", "model"]).unwrap()
    }

    fn specs() -> (Vec<ParamSpec>, Vec<(ParamId, String)>) {
        let spec = |name: &str, dims: &[usize]| ParamSpec {
            name: name.into(),
            dims: dims.into(),
            trainable: true,
            partition_axis: None,
        };
        let specs = vec![
            spec("block_0/ffn_up/kernel", &[6, 8]),
            spec("block_0/ffn_up/bias", &[8]),
            spec("block_0/ffn_down/kernel", &[8, 6]),
        ];
        let paths = (0..).map(ParamId).zip(specs.iter().map(|s| s.name.clone()));
        let paths = paths.collect();
        (specs, paths)
    }

    fn partition_axes(map: &LayoutMap) -> Result<Vec<Option<usize>>> {
        let (mut specs, weights) = specs();
        map.partition(&mut specs, &weights)?;
        Ok(specs.iter().map(|s| s.partition_axis).collect())
    }

    #[test]
    fn keys_are_paths_or_expressions_of_whole_paths() {
        let map = LayoutMap::new(&mesh())
            .insert(".*/ffn_up/.*", [None, Some("model")])
            .unwrap()
            .insert("block_0/ffn_up/bias", [Some("model")])
            .unwrap()
            .insert(".*down/kernel", [Some("model"), None])
            .unwrap();
        assert_eq!(partition_axes(&map).unwrap(), [Some(1), Some(0), Some(0)]);
    }

    #[test]
    fn layouts_that_do_not_fit_are_refused() {
        let one = |key: &str, axes: &[Option<&str>]| {
            let map = LayoutMap::new(&mesh()).insert(key, axes.iter().copied())?;
            partition_axes(&map)
        };
        for (key, axes, expected) in [
            (
                ".*ffn/kernel",
                &[None, Some("model")][..],
                "'.*ffn/kernel': expected to match a weight, received none (nearest: 'block_0/ffn_up/kernel')",
            ),
            ("ffn_up/kernel", &[None, Some("model")], "expected to match a weight"),
            (
                ".*up/kernel",
                &[Some("model"), None],
                "axis 0 of 'block_0/ffn_up/kernel': expected a multiple of model=4, received 6",
            ),
            (".*up/kernel", &[Some("model")], "expected a layout of 2 axes, received 1"),
            (
                ".*up/kernel",
                &[Some("batch"), None],
                "expected the model axis, or shard(Shard::Weights)",
            ),
            (
                ".*up/kernel",
                &[Some("x"), None],
                "expected axes of the mesh: batch, model, received x",
            ),
            (
                ".*up/kernel",
                &[Some("model"), Some("model")],
                "expected at most one axis that is divided",
            ),
        ] {
            let error = one(key, axes).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let twice = LayoutMap::new(&mesh())
            .insert(".*kernel", [None, Some("model")])
            .unwrap()
            .insert(".*up.*", [None, Some("model")])
            .unwrap();
        let error = partition_axes(&twice).unwrap_err().to_string();
        assert!(error.contains("expected one layout, received '.*kernel' and '.*up.*'"), "{error}");
        assert!(twice.insert(".*kernel", [None, None]).is_err());
    }

    #[test]
    fn meshes_have_one_or_two_named_axes() {
        let error = |shape: &[usize], names: &[&str]| {
            let names = names.iter().copied();
            DeviceMesh::new(shape.iter().copied(), names).unwrap_err().to_string()
        };
        assert!(error(&[2], &["a", "b"]).contains("expected a name for each size"));
        assert!(error(&[], &[]).contains("expected one or two axes"));
        assert!(error(&[2, 2], &["a", "a"]).contains("expected different names"));
        assert!(error(&[2, 0], &["a", "b"]).contains("expected 1 to"));
        assert!(error(&[usize::MAX, 2], &["a", "b"]).contains("expected 1 to"));
        assert_eq!(mesh().split(None).unwrap(), (2, 4, Some("model")));
        assert!(mesh().split(Some("model")).is_err() && mesh().split(Some("x")).is_err());
        assert_eq!(mesh().to_string(), "batch=2,model=4");
    }
}
