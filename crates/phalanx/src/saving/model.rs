//! Saving and loading methods of [`Model`].

use super::{
    Format, SaveOptions, expected_weights, legacy, open_checked, open_stored, optimizer_state,
};
use super::{keras, owners, save, warn_not_saved};
use crate::error::{Error, Result};
use crate::model::Model;
use phalanx_graph::Tensor;
use std::collections::HashSet;
use std::path::Path;

impl Model {
    /// Saves the whole model to a `.keras` file (or a legacy `.h5`): structure, weights and, if it is
    /// compiled, losses, metrics, optimizer and optimizer state. Python Keras and
    /// [`load_model`](super::load_model) can read it.
    ///
    /// The file is written atomically and is on disk when the call returns.
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
    /// An unknown extension, or an error of the system, naming the file. An existing file stays
    /// unchanged.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        if Format::of(path)?.weights_only() == Some(true) {
            let expected = "a name ending in .keras or .h5 for a whole model";
            let received = "one of a file of weights (see save_weights)";
            return Err(Error::file(path, expected, received));
        }
        let training = self.training()?;
        let options = SaveOptions { structure: true, training };
        warn_not_saved(path, &save(path, self.definition(), &self.unique_weights()?, options)?);
        Ok(())
    }

    /// Returns a model of the same structure with layers and weights of its own, as Keras' `clone_model`. Its weights are
    /// initialised when it is first used or compiled.
    ///
    /// ```
    /// use phalanx::prelude::*;
    ///
    /// let model = Sequential::new().add(Input::new([4])).add(Dense::new(3)).build()?;
    /// model.initialize(1)?;
    /// let mut copy = model.clone_model()?;
    /// copy.initialize(2)?;
    /// assert_ne!(copy.get_weights()?, model.get_weights()?);
    /// copy.set_weights(&model.get_weights()?)?;
    /// assert_eq!(copy.get_weights()?, model.get_weights()?);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    ///
    /// # Errors
    /// A layer that Keras does not have: its config cannot be read back.
    pub fn clone_model(&self) -> Result<Model> {
        let config = keras::whole_config(self.definition(), keras::Style::Version3, None);
        Ok(Model::of(keras::read_structure(&config)?))
    }

    /// Saves all weights to a `.weights.h5`, `.safetensors` or legacy `.h5` file. These formats do not
    /// store the optimizer state; for a trained model a warning says so.
    ///
    /// The file is written atomically and is on disk when the call returns.
    ///
    /// # Errors
    /// An unknown extension, or an error of the system, naming the file. An existing file stays
    /// unchanged.
    pub fn save_weights(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        if Format::of(path)? == Format::Keras {
            let expected = "a name ending in .weights.h5, .h5 or .safetensors for weights";
            return Err(Error::file(path, expected, "one of a whole model (see save)"));
        }
        let mut not_saved =
            save(path, self.definition(), &self.unique_weights()?, SaveOptions::default())?;
        not_saved.extend(self.iterations().and_then(optimizer_state));
        warn_not_saved(path, &not_saved);
        Ok(())
    }

    /// All weights without duplicates. The weights of a shared layer have its first name.
    pub(super) fn unique_weights(&self) -> Result<Vec<(String, Tensor)>> {
        let mut weights = self.weights()?;
        let names: HashSet<String> =
            expected_weights(self.definition()).into_iter().map(|w| w.0).collect();
        weights.retain(|(name, _)| names.contains(name));
        Ok(weights)
    }

    /// Sets all weights from a file of weights or of a whole model.
    ///
    /// # Errors
    /// A file that is damaged or does not fit the model. The error lists every weight that is missing,
    /// unexpected or of another shape. The weights of the model stay unchanged.
    pub fn load_weights(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        match Format::of(path)? {
            Format::SafeTensors => self.load_safetensors(path),
            format => open_stored(path, format)?.set_weights(path, self),
        }
    }

    /// The structure as JSON, as Keras' `to_json` and `.keras` files have it.
    pub fn to_json(&self) -> String {
        super::structure(self.definition())
    }

    /// Sets the weights of layers that a legacy `.h5` file has under the same names, and returns the
    /// names of the layers it lacks. Layers that exist only in the file are skipped.
    ///
    /// # Errors
    /// A file that is damaged or of another format, and layers whose weights have other shapes. The
    /// weights of the model stay unchanged.
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
        let mut reader = open_checked(path, &expected_weights(self.definition()))?;
        let owners = owners(self.definition());
        let mut tensors = vec![];
        for (name, layer) in self.layers() {
            // Other names of a shared layer refer to the same weights.
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
