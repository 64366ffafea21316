//! A build without support for GPUs.

/// No libraries.
pub struct Libraries;

impl Libraries {
    pub fn find() -> Libraries {
        Libraries
    }

    pub fn table(&self) -> Vec<String> {
        vec![phalanx::Error::MissingFeature { what: "GPUs", feature: "cuda" }.to_string()]
    }

    pub fn unusable(&self, _gpus: usize) -> Vec<String> {
        vec![]
    }
}

pub fn driver_version() -> Option<String> {
    None
}

pub fn cache_folder() -> Option<std::path::PathBuf> {
    None
}
