//! A model's way to files and back.

use super::{Format, Parts, expected, legacy, open_checked, open_stored, optimizer_state};
use super::{owners, save, warn_of_unkept};
use crate::error::{Error, Result};
use crate::model::Model;
use phalanx_graph::Tensor;
use std::collections::HashSet;
use std::path::Path;

impl Model {
    /// Writes the whole model to a `.keras` file (or a legacy `.h5`): structure, weights and, once it is
    /// compiled, losses, metrics, optimizer and what the optimizer has gathered. Python Keras reads
    /// it, and [`load_model`](super::load_model) does.
    ///
    /// The file is there whole or not at all, and on the disk when the call returns.
    ///
    /// ```
    /// use phalanx::prelude::*;
    ///
    /// # let directory = std::env::temp_dir();
    /// # let path = directory.join(format!("phalanx-doc-{}.keras", std::process::id()));
    /// let mut model = Sequential::new().add(Input::new([4])).add(Dense::new(3)).build()?;
    /// model.compile(Compile::new("adam").loss("mse"))?;
    /// model.save(&path)?;
    /// let again = load_model(&path)?;
    /// assert_eq!(again.get_weights()?, model.get_weights()?);
    /// # std::fs::remove_file(&path).ok();
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    ///
    /// # Errors
    /// Another extension, or what the system reports, naming the file; an older file stays as it was.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        if Format::of(path)?.weights_only() == Some(true) {
            let expected = "a name ending in .keras or .h5 for a whole model";
            let received = "one of a file of weights (see save_weights)";
            return Err(Error::file(path, expected, received));
        }
        let training = self.training();
        let parts = Parts { whole: true, training };
        warn_of_unkept(path, &save(path, self.definition(), &self.own_weights()?, parts)?);
        Ok(())
    }

    /// Writes every weight to a `.weights.h5`, `.safetensors` or legacy `.h5` file. What the optimizer has
    /// gathered is not kept there: of a model that was trained a warning says so.
    ///
    /// The file is there whole or not at all, and on the disk when the call returns.
    ///
    /// # Errors
    /// Another extension, or what the system reports, naming the file; an older file stays as it was.
    pub fn save_weights(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        if Format::of(path)? == Format::Keras {
            let expected = "a name ending in .weights.h5, .h5 or .safetensors for weights";
            return Err(Error::file(path, expected, "one of a whole model (see save)"));
        }
        let mut unkept = save(path, self.definition(), &self.own_weights()?, Parts::default())?;
        unkept.extend(self.iterations().and_then(optimizer_state));
        warn_of_unkept(path, &unkept);
        Ok(())
    }

    /// Every weight once: a shared layer's under its first name.
    pub(super) fn own_weights(&self) -> Result<Vec<(String, Tensor)>> {
        let mut weights = self.weights()?;
        let names: HashSet<String> = expected(self.definition()).into_iter().map(|w| w.0).collect();
        weights.retain(|(name, _)| names.contains(name));
        Ok(weights)
    }

    /// Sets every weight from a file of weights or of a whole model.
    ///
    /// # Errors
    /// A file that is broken or does not fit the model, with every weight that is missing, too many
    /// or of another shape; the model's weights then stay as they were.
    pub fn load_weights(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        match Format::of(path)? {
            Format::SafeTensors => self.load_safetensors(path),
            format => open_stored(path, format)?.set_weights(path, self),
        }
    }

    /// Sets the weights of layers that a legacy `.h5` file has under the same names, and returns the
    /// names of those it has none for. Layers that are only in the file are passed over.
    ///
    /// # Errors
    /// A file that is broken or of another kind, and layers whose weights have other shapes; the
    /// model's weights then stay as they were.
    pub fn load_weights_by_name(&mut self, path: impl AsRef<Path>) -> Result<Vec<String>> {
        let path = path.as_ref();
        let stored = open_stored(path, Format::of(path)?)?;
        let how = legacy::Match::ByName;
        let (staged, left) = legacy::read(path, &stored.file, self.definition(), how)?;
        for (layer, values) in staged {
            layer.set_values(values.into_iter());
        }
        Ok(left)
    }

    fn load_safetensors(&mut self, path: &Path) -> Result<()> {
        let mut reader = open_checked(path, &expected(self.definition()))?;
        let owners = owners(self.definition());
        let mut tensors = vec![];
        for (name, layer) in self.layers() {
            // A shared layer's other names stand for the same weights.
            let owner = owners.iter().find(|(_, known)| known.same(&layer)).map_or(&name, |o| &o.0);
            for weight in layer.weights().iter() {
                let values = reader.read(&format!("{owner}/{}", weight.spec.name))?;
                let tensor = Tensor::new(weight.spec.dims.clone(), values);
                let expected = format!("{:?} for '{owner}'", weight.spec.dims);
                tensors.push(tensor.map_err(|_| Error::file(path, expected, "others"))?);
            }
        }
        self.set_weights(&tensors)
    }
}
