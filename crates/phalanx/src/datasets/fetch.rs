//! The published datasets, and their download into the cache.

use super::{cifar, directory, download, mnist};
use crate::error::{Error, Result};
use crate::launch;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The checksum of a file, in hexadecimal.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "datasets"), expect(dead_code, reason = "only downloads are verified"))]
pub(crate) enum Checksum<'a> {
    Sha256(&'a str),
    Md5(&'a str),
    /// The publisher does not say.
    Unknown,
}

/// A file to download.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote<'a> {
    /// Local file name.
    pub file: &'a str,
    /// Addresses, the official one first. The file name is appended to an address that ends in `/`.
    pub urls: &'a [&'a str],
    #[cfg_attr(
        not(feature = "datasets"),
        expect(dead_code, reason = "only downloads are verified")
    )]
    pub checksum: Checksum<'a>,
}

/// Progress of a download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Name of the file.
    pub file: String,
    /// Bytes received so far.
    pub received: u64,
    /// Total number of bytes, if the server reports it.
    pub total: Option<u64>,
}

/// A dataset that can be downloaded.
pub(super) struct Published {
    pub name: &'static str,
    /// Its directory under [`directory`].
    pub folder: &'static str,
    /// The files that a user would place there.
    pub files: &'static [&'static str],
    pub remotes: &'static [Remote<'static>],
    /// Whether the only remote file is an archive of the files.
    pub is_archive: bool,
    /// The files that are missing from a directory.
    pub missing: fn(&Path) -> Vec<String>,
}

const MNIST: &[&str] = &[
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
];
const FASHION: &[&str] = &[
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
];

macro_rules! idx {
    ($urls:expr, $file:literal, $sum:literal) => {
        Remote { file: concat!($file, "-ubyte.gz"), urls: $urls, checksum: Checksum::Sha256($sum) }
    };
}

const IDX: &[&str] = &[
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
];

/// Checksums: `SHA256SUMS` of the official gzip files, and the published md5 of the archives.
static PUBLISHED: [Published; 4] = [
    Published {
        name: "mnist",
        folder: "mnist",
        files: IDX,
        remotes: &[
            idx!(
                MNIST,
                "train-images-idx3",
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
            ),
            idx!(
                MNIST,
                "train-labels-idx1",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
            ),
            idx!(
                MNIST,
                "t10k-images-idx3",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
            ),
            idx!(
                MNIST,
                "t10k-labels-idx1",
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
            ),
        ],
        is_archive: false,
        missing: mnist::missing,
    },
    Published {
        name: "fashion-mnist",
        folder: "fashion-mnist",
        files: IDX,
        remotes: &[
            idx!(
                FASHION,
                "train-images-idx3",
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"
            ),
            idx!(
                FASHION,
                "train-labels-idx1",
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"
            ),
            idx!(
                FASHION,
                "t10k-images-idx3",
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"
            ),
            idx!(
                FASHION,
                "t10k-labels-idx1",
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"
            ),
        ],
        is_archive: false,
        missing: mnist::missing,
    },
    Published {
        name: "cifar-10",
        folder: "cifar-10-batches-bin",
        files: cifar::FILES_10,
        remotes: &[Remote {
            file: "cifar-10-binary.tar.gz",
            urls: &["https://www.cs.toronto.edu/~kriz/"],
            checksum: Checksum::Md5("c32a1d4ab5d03f1284b67883e8d87530"),
        }],
        is_archive: true,
        missing: cifar::missing_10,
    },
    Published {
        name: "cifar-100",
        folder: "cifar-100-binary",
        files: cifar::FILES_100,
        remotes: &[Remote {
            file: "cifar-100-binary.tar.gz",
            urls: &["https://www.cs.toronto.edu/~kriz/"],
            checksum: Checksum::Md5("03b5dce01913d631647c71ecec9e9cb8"),
        }],
        is_archive: true,
        missing: cifar::missing_100,
    },
];

/// Downloads a dataset into the cache unless it is already there. Returns its directory.
///
/// An interrupted transfer resumes where it stopped, and files are verified before they get their names.
/// If `PHALANX_OFFLINE` is set, nothing is downloaded.
///
/// # Errors
/// [`Error::Download`] tells which files to place where. A build without the feature `datasets` cannot
/// download.
pub fn fetch(name: &str, progress: &mut dyn FnMut(&Transfer)) -> Result<PathBuf> {
    published(name)?.fetch(&directory(), progress)
}

/// The local directory of a dataset; `None` if it would have to be downloaded.
///
/// # Errors
/// An unknown name.
pub fn find(name: &str) -> Result<Option<PathBuf>> {
    let published = published(name)?;
    let debian = (name == "fashion-mnist").then(|| PathBuf::from(mnist::DEBIAN));
    let candidates = [Some(directory().join(published.folder)), debian];
    Ok(candidates.into_iter().flatten().find(|dir| (published.missing)(dir).is_empty()))
}

fn published(name: &str) -> Result<&'static Published> {
    PUBLISHED.iter().find(|p| p.name == name).ok_or_else(|| Error::Unknown {
        kind: "dataset of files",
        name: name.into(),
        known: PUBLISHED.iter().map(|p| p.name.into()).collect(),
    })
}

/// The directory of a dataset. Downloads it if necessary and shows progress on the terminal.
pub(super) fn find_or_fetch(name: &str) -> Result<PathBuf> {
    match find(name)? {
        Some(directory) => Ok(directory),
        None => fetch(name, &mut terminal()),
    }
}

impl Published {
    pub(super) fn fetch(
        &self,
        cache: &Path,
        progress: &mut dyn FnMut(&Transfer),
    ) -> Result<PathBuf> {
        let target = cache.join(self.folder);
        let missing = (self.missing)(&target);
        if missing.is_empty() {
            return Ok(target);
        }
        let result = online().and_then(|()| self.download(&missing, &target, progress));
        result.map_err(|e| Error::Download {
            name: self.name.into(),
            files: missing,
            directory: target.clone(),
            url: self.remotes[0].urls[0].into(),
            reason: e.to_string(),
        })?;
        Ok(target)
    }

    fn download(
        &self,
        missing: &[String],
        target: &Path,
        progress: &mut dyn FnMut(&Transfer),
    ) -> Result<()> {
        if self.is_archive {
            let archive = download::fetch(&self.remotes[0], target, progress)?;
            download::unpack(&archive, self.files, target)?;
            return std::fs::remove_file(&archive).map_err(|e| Error::io(&archive, e));
        }
        for remote in self.remotes.iter().filter(|r| missing.iter().any(|file| file == r.file)) {
            download::fetch(remote, target, progress)?;
        }
        Ok(())
    }
}

/// Fails if the user allows no downloads.
fn online() -> Result<()> {
    match std::env::var_os("PHALANX_OFFLINE").is_some_and(|v| !v.is_empty()) {
        true => Err(Error::config("download", "PHALANX_OFFLINE is set")),
        false => Ok(()),
    }
}

/// Downloads one file into a directory. `name` says in errors what it is.
pub(crate) fn fetch_file(
    remote: &Remote<'_>,
    name: &str,
    target: &Path,
    progress: &mut dyn FnMut(&Transfer),
) -> Result<PathBuf> {
    online().and_then(|()| download::fetch(remote, target, progress)).map_err(|e| Error::Download {
        name: name.into(),
        files: vec![remote.file.into()],
        directory: target.into(),
        url: remote.urls[0].into(),
        reason: e.to_string(),
    })
}

/// Shows progress on standard error if that is a terminal, for use with [`fetch`].
pub fn terminal() -> impl FnMut(&Transfer) {
    let is_terminal = launch::is_terminal(&std::io::stderr());
    let mut last: Option<Instant> = None;
    move |transfer| {
        let done = transfer.total == Some(transfer.received);
        let too_soon = last.is_some_and(|last| last.elapsed() < Duration::from_millis(100));
        if !is_terminal || (too_soon && !done) {
            return;
        }
        last = Some(Instant::now());
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        let total = transfer.total.map_or("?".into(), |t| format!("{:.1}", megabytes(t)));
        let end = if done { "\n" } else { "" };
        let (file, received) = (&transfer.file, megabytes(transfer.received));
        // A terminal that has gone away is no reason to stop.
        let _ = write!(std::io::stderr(), "\r{file}: {received:.1} of {total} MB{end}");
    }
}
