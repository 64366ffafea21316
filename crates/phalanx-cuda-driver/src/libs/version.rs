//! Versions of the libraries, and which are compatible.

use super::{Lib, address};
use libloading::os::unix::Library;
use std::ffi::c_int;
use std::fmt;

/// The version of a library; of the driver, its CUDA version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Major version.
    pub major: usize,
    /// Minor version.
    pub minor: usize,
    /// Patch version.
    pub patch: usize,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        if self.patch == 0 { Ok(()) } else { write!(f, ".{}", self.patch) }
    }
}

impl Version {
    /// Decodes the version number that a library reports.
    fn of(lib: Lib, number: usize) -> Version {
        let thousands = match lib {
            Lib::Driver => true,
            // The encoding before cuDNN 9, NCCL 2.9 and cuBLAS 12.
            Lib::Cudnn | Lib::Nccl | Lib::CublasLt => number < 20_000,
            Lib::Nvrtc => false,
        };
        let (unit, step, part) = match (lib, thousands) {
            (Lib::Driver, _) => (1000, 10, 10),
            (_, true) => (1000, 100, 100),
            (_, false) => (10_000, 100, 100),
        };
        let (major, rest) = (number / unit, number % unit);
        Version { major, minor: rest / step, patch: rest % part }
    }
}

/// Queries the version of a library.
///
/// # Safety
/// The handle must be a library of this kind.
pub(super) unsafe fn query(lib: Lib, handle: &Library) -> Option<Version> {
    type Writes = unsafe extern "C" fn(*mut c_int) -> c_int;
    type WritesTwo = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
    type Returns = unsafe extern "C" fn() -> usize;
    let name = match lib {
        Lib::Driver => "cuDriverGetVersion",
        Lib::Nvrtc => "nvrtcVersion",
        Lib::CublasLt => "cublasLtGetVersion",
        Lib::Cudnn => "cudnnGetVersion",
        Lib::Nccl => "ncclGetVersion",
    };
    let at = address(handle, name)?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the caller's contract; these functions need only the library, and all of them return
    // 0 on success.
    let number = unsafe {
        match lib {
            Lib::Driver | Lib::Nccl => {
                let ask: Writes = std::mem::transmute(at);
                (ask(&mut major) == 0).then_some(major)?
            }
            Lib::Nvrtc => {
                let ask: WritesTwo = std::mem::transmute(at);
                (ask(&mut major, &mut minor) == 0).then_some(major * 10_000 + minor * 100)?
            }
            Lib::CublasLt | Lib::Cudnn => {
                let ask: Returns = std::mem::transmute(at);
                c_int::try_from(ask()).ok()?
            }
        }
    };
    Some(Version::of(lib, usize::try_from(number).ok()?))
}

/// Fails if a library cannot be used here.
pub(super) fn check(lib: Lib, version: Version, driver: Option<Version>) -> Result<(), String> {
    match (lib, driver) {
        (Lib::Cudnn, _) if version.major != 9 => {
            Err(format!("is version {version}: expected version 9"))
        }
        (Lib::Nvrtc, Some(driver)) if version.major > driver.major => {
            Err(format!("is version {version}: newer than the driver's CUDA {driver}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_decoded_per_library() {
        let text = |lib, number| Version::of(lib, number).to_string();
        assert_eq!(text(Lib::Driver, 13_000), "13.0");
        assert_eq!(text(Lib::Driver, 12_040), "12.4");
        assert_eq!(text(Lib::Nvrtc, 130_400), "13.4");
        assert_eq!(text(Lib::CublasLt, 130_002), "13.0.2");
        assert_eq!(text(Lib::Cudnn, 91_301), "9.13.1");
        assert_eq!(text(Lib::Cudnn, 8_902), "8.9.2");
        assert_eq!(text(Lib::Nccl, 22_703), "2.27.3");
        assert_eq!(text(Lib::Nccl, 2_708), "2.7.8");
    }

    #[test]
    fn incompatible_versions_are_reported() {
        let version = |major, minor| Version { major, minor, patch: 0 };
        let old = check(Lib::Cudnn, version(8, 9), None).unwrap_err();
        assert_eq!(old, "is version 8.9: expected version 9");
        let new = check(Lib::Nvrtc, version(13, 0), Some(version(12, 4))).unwrap_err();
        assert_eq!(new, "is version 13.0: newer than the driver's CUDA 12.4");
        for fine in [None, Some(version(13, 1)), Some(version(14, 0))] {
            assert_eq!(check(Lib::Nvrtc, version(13, 1), fine), Ok(()));
        }
        assert_eq!(check(Lib::Nvrtc, version(13, 4), Some(version(13, 0))), Ok(()));
        assert_eq!(check(Lib::Cudnn, version(9, 1), None), Ok(()));
    }
}
