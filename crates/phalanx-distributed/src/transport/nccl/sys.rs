//! The functions of `nccl.h` in use. All were resolved when the library was opened.
#![allow(non_snake_case)]

use phalanx_cuda_driver::cudarc::driver::sys::CUstream;
use phalanx_cuda_driver::libs::{self, Lib};
use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

/// A communicator.
pub type Comm = *mut c_void;

/// The id by which ranks find each other.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId(pub [c_char; 128]);

macro_rules! functions {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $result:ty;)*) => {$(
        pub unsafe fn $name($($arg: $ty),*) -> $result {
            type Function = unsafe extern "C" fn($($ty),*) -> $result;
            static FOUND: OnceLock<Function> = OnceLock::new();
            let function = FOUND.get_or_init(|| {
                let at = libs::find(Lib::Nccl).ok().and_then(|l| l.address(stringify!($name)));
                // SAFETY: the library's function of that name has this type.
                unsafe { std::mem::transmute(at.expect("looked for when opened")) }
            });
            // SAFETY: upheld by the caller.
            unsafe { function($($arg),*) }
        }
    )*};
}

functions! {
    fn ncclGetUniqueId(id: *mut UniqueId) -> c_int;
    fn ncclCommInitRank(comm: *mut Comm, ranks: c_int, id: UniqueId, rank: c_int) -> c_int;
    fn ncclAllReduce(
        from: *const c_void, to: *mut c_void, count: usize, elem: c_int, op: c_int,
        comm: Comm, stream: CUstream
    ) -> c_int;
    fn ncclSend(
        from: *const c_void, count: usize, elem: c_int, to: c_int, comm: Comm, stream: CUstream
    ) -> c_int;
    fn ncclRecv(
        to: *mut c_void, count: usize, elem: c_int, from: c_int, comm: Comm, stream: CUstream
    ) -> c_int;
    fn ncclGroupStart() -> c_int;
    fn ncclGroupEnd() -> c_int;
    fn ncclCommGetAsyncError(comm: Comm, error: *mut c_int) -> c_int;
    fn ncclCommDestroy(comm: Comm) -> c_int;
    fn ncclCommAbort(comm: Comm) -> c_int;
    fn ncclGetErrorString(error: c_int) -> *const c_char;
    fn ncclGetLastError(comm: Comm) -> *const c_char;
}
