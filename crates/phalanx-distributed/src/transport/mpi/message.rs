//! A message in flight.

use mpi::ffi;

/// A message in flight. Its bytes are borrowed by the caller of `exchange`, which does not return before MPI
/// has released them.
pub(crate) struct Message {
    pub rank: usize,
    pub incoming: bool,
    pub bytes: usize,
    pub request: ffi::MPI_Request,
}

/// Why a message failed.
pub(crate) enum Fault {
    /// A size other than the expected one; `None` if the library does not report how much larger.
    Size(Option<usize>),
    /// The library's error code.
    Code(i32),
}

impl Message {
    /// Whether it has been sent or received.
    pub fn is_complete(&mut self) -> Result<bool, Fault> {
        let (mut flag, mut received) = (0, 0);
        // SAFETY: a status is plain numbers, which the calls fill. The request is in flight, or it is
        // the null request that a completed one becomes.
        let (code, status) = unsafe {
            let mut status: ffi::MPI_Status = std::mem::zeroed();
            (ffi::MPI_Test(&mut self.request, &mut flag, &mut status), status)
        };
        if code == ffi::MPI_SUCCESS as i32 && (flag == 0 || !self.incoming) {
            return Ok(flag != 0);
        }
        // SAFETY: the status of a completed receive of bytes.
        unsafe {
            let kind =
                mpi::raw::AsRaw::as_raw(&<u8 as mpi::datatype::Equivalence>::equivalent_datatype());
            ffi::MPI_Get_count(&status, kind, &mut received);
        }
        let received = usize::try_from(received).unwrap_or(0);
        match code {
            _ if code == ffi::MPI_SUCCESS as i32 && received == self.bytes => Ok(true),
            _ if code == ffi::MPI_SUCCESS as i32 => Err(Fault::Size(Some(received))),
            _ if error_class(code) == ffi::MPI_ERR_TRUNCATE as i32 => {
                Err(Fault::Size(Some(received).filter(|received| *received > self.bytes)))
            }
            _ => Err(Fault::Code(code)),
        }
    }

    /// Cancels a receive that no process has sent to yet; sends cannot be cancelled.
    pub fn cancel(&mut self) {
        if self.incoming {
            // SAFETY: a request in flight.
            unsafe { ffi::MPI_Cancel(&mut self.request) };
        }
    }
}

/// The MPI error class of an error code.
fn error_class(code: i32) -> i32 {
    let mut error_class = code;
    // SAFETY: a plain query.
    unsafe { ffi::MPI_Error_class(code, &mut error_class) };
    error_class
}
