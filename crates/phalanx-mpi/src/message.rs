//! One message under way.

use mpi::ffi;

/// A message under way. Its bytes are borrowed by whoever called `exchange`, which does not return before
/// MPI is done with them.
pub(crate) struct Message {
    pub rank: usize,
    pub incoming: bool,
    pub bytes: usize,
    pub request: ffi::MPI_Request,
}

/// What is wrong with a message that has ended.
pub(crate) enum Fault {
    /// Another size than was agreed upon; nothing where the library does not say how much more.
    Size(Option<usize>),
    /// The library's error code.
    Code(i32),
}

impl Message {
    /// Whether it has gone or come.
    pub fn done(&mut self) -> Result<bool, Fault> {
        let (mut flag, mut came) = (0, 0);
        // SAFETY: a status is plain numbers, which the calls fill; the request is one under way, or the
        // null request that an ended one becomes.
        let (code, status) = unsafe {
            let mut status: ffi::MPI_Status = std::mem::zeroed();
            (ffi::MPI_Test(&mut self.request, &mut flag, &mut status), status)
        };
        if code == ffi::MPI_SUCCESS as i32 && (flag == 0 || !self.incoming) {
            return Ok(flag != 0);
        }
        // SAFETY: the status of a receive of bytes that has ended.
        unsafe {
            let kind =
                mpi::raw::AsRaw::as_raw(&<u8 as mpi::datatype::Equivalence>::equivalent_datatype());
            ffi::MPI_Get_count(&status, kind, &mut came);
        }
        let came = usize::try_from(came).unwrap_or(0);
        match code {
            _ if code == ffi::MPI_SUCCESS as i32 && came == self.bytes => Ok(true),
            _ if code == ffi::MPI_SUCCESS as i32 => Err(Fault::Size(Some(came))),
            _ if class(code) == ffi::MPI_ERR_TRUNCATE as i32 => {
                Err(Fault::Size(Some(came).filter(|came| *came > self.bytes)))
            }
            _ => Err(Fault::Code(code)),
        }
    }

    /// Takes back a message that nobody has sent yet; sends cannot be taken back.
    pub fn cancel(&mut self) {
        if self.incoming {
            // SAFETY: a request under way.
            unsafe { ffi::MPI_Cancel(&mut self.request) };
        }
    }
}

/// The kind of an error.
fn class(code: i32) -> i32 {
    let mut class = code;
    // SAFETY: a plain query.
    unsafe { ffi::MPI_Error_class(code, &mut class) };
    class
}
