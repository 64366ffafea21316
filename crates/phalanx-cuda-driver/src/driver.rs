//! Objects of the driver, each freed when dropped.

use cudarc::driver::sys::{self, CUresult};
use std::ffi::{CStr, CString, c_void};
use std::fmt;

/// The message of a failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(pub String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The result of a call of the driver.
pub type Result<T> = std::result::Result<T, Failure>;

/// Converts a return code to a result that names the call.
pub fn check(what: &str, answer: CUresult) -> Result<()> {
    if answer == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = std::ptr::null();
    // SAFETY: the driver returns a pointer to a constant, or leaves null.
    let reason = unsafe {
        sys::cuGetErrorString(answer, &mut text);
        if text.is_null() { "unknown error".into() } else { CStr::from_ptr(text).to_string_lossy() }
    };
    Err(Failure(format!("{what}: {reason} ({answer:?})")))
}

/// Calls a driver function and checks its result. The arguments must be live objects of this crate or addresses of
/// locals: the macro cannot check that.
#[doc(hidden)]
#[macro_export]
macro_rules! cu {
    ($call:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: arguments are live objects of this module or addresses of locals.
        $crate::driver::check(stringify!($call), unsafe {
            $crate::cudarc::driver::sys::$call($($arg),*)
        })
    };
}
pub use crate::cu;

/// A GPU's primary context.
pub struct Context {
    raw: sys::CUcontext,
    device: sys::CUdevice,
}

// SAFETY: a context may be current on any thread.
unsafe impl Send for Context {}
// SAFETY: also on several threads at once.
unsafe impl Sync for Context {}

impl Context {
    /// The context of GPU `index`.
    pub fn new(index: usize) -> Result<Context> {
        cu!(cuInit(0))?;
        let mut device = 0;
        cu!(cuDeviceGet(&mut device, index as i32))?;
        let context = Context::retain(device)?;
        context.enter()?;
        Ok(context)
    }

    fn retain(device: sys::CUdevice) -> Result<Context> {
        let mut raw = std::ptr::null_mut();
        cu!(cuDevicePrimaryCtxRetain(&mut raw, device))?;
        Ok(Context { raw, device })
    }

    /// Another reference to the same context.
    pub fn try_clone(&self) -> Result<Context> {
        Context::retain(self.device)
    }

    /// Makes it current on this thread.
    pub fn enter(&self) -> Result<()> {
        cu!(cuCtxSetCurrent(self.raw))
    }

    /// An attribute of the GPU.
    pub fn attribute(&self, which: sys::CUdevice_attribute) -> Result<i32> {
        let mut value = 0;
        cu!(cuDeviceGetAttribute(&mut value, which, self.device))?;
        Ok(value)
    }

    /// Compute capability, such as 90.
    pub fn capability(&self) -> Result<i32> {
        use sys::CUdevice_attribute as A;
        let major = self.attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok(10 * major + minor)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        cu!(cuDevicePrimaryCtxRelease_v2(self.device)).ok();
    }
}

/// Number of GPUs.
pub fn count() -> Result<usize> {
    cu!(cuInit(0))?;
    let mut count = 0;
    cu!(cuDeviceGetCount(&mut count))?;
    Ok(count.max(0) as usize)
}

/// A GPU's name and memory in bytes.
pub fn describe(index: usize) -> Result<(String, usize)> {
    let mut device = 0;
    cu!(cuDeviceGet(&mut device, index as i32))?;
    let mut name = [0; 128];
    cu!(cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, device))?;
    let mut bytes = 0;
    cu!(cuDeviceTotalMem_v2(&mut bytes, device))?;
    // SAFETY: the driver zero-terminates the name.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    Ok((name, bytes))
}

/// Free and total memory of the current context's GPU.
pub fn memory() -> Result<(usize, usize)> {
    let (mut free, mut total) = (0, 0);
    cu!(cuMemGetInfo_v2(&mut free, &mut total))?;
    Ok((free, total))
}

/// Waits for the default stream. `cuMemset` and `cuMemcpyHtoD` run there and may return before they have finished, and a
/// [`Stream`] does not wait for the default stream.
fn finish_default_stream() -> Result<()> {
    cu!(cuStreamSynchronize(std::ptr::null_mut()))
}

/// Copies bytes to the address `at` on the GPU. They have arrived when it returns.
pub fn copy_to_device(at: u64, bytes: &[u8]) -> Result<()> {
    cu!(cuMemcpyHtoD_v2(at, bytes.as_ptr().cast(), bytes.len()))?;
    finish_default_stream()
}

/// Device memory, initially zero.
#[derive(Default)]
pub struct DeviceBuffer {
    at: u64,
    bytes: usize,
}

impl DeviceBuffer {
    /// Allocates at least `bytes` bytes in the current context.
    pub fn new(bytes: usize) -> Result<DeviceBuffer> {
        let bytes = bytes.max(256);
        let mut at = 0;
        cu!(cuMemAlloc_v2(&mut at, bytes))?;
        let buffer = DeviceBuffer { at, bytes };
        cu!(cuMemsetD8_v2(at, 0, bytes))?;
        finish_default_stream()?;
        Ok(buffer)
    }

    /// Its address.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.at != 0 {
            cu!(cuMemFree_v2(self.at)).ok();
        }
    }
}

/// Page-locked host memory, which the GPU copies directly.
pub struct PinnedBuffer {
    at: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory.
unsafe impl Send for PinnedBuffer {}
// SAFETY: as above; writing needs `&mut`.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// Allocates at least `bytes` bytes.
    pub fn new(bytes: usize) -> Result<PinnedBuffer> {
        let bytes = bytes.max(64);
        let mut at: *mut c_void = std::ptr::null_mut();
        cu!(cuMemHostAlloc(&mut at, bytes, sys::CU_MEMHOSTALLOC_PORTABLE))?;
        Ok(PinnedBuffer { at: at.cast(), bytes })
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: allocated with this size.
        unsafe { std::slice::from_raw_parts(self.at, self.bytes) }
    }

    /// Its bytes, for writing.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.bytes) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        cu!(cuMemFreeHost(self.at.cast())).ok();
    }
}

/// A queue of work on the GPU.
pub struct Stream(pub sys::CUstream);

// SAFETY: streams may be used from any thread where the context is current.
unsafe impl Send for Stream {}

impl Stream {
    /// A stream that does not wait for the default stream.
    pub fn new() -> Result<Stream> {
        let mut raw = std::ptr::null_mut();
        cu!(cuStreamCreate(&mut raw, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32))?;
        Ok(Stream(raw))
    }

    /// Waits for all work of the stream.
    pub fn synchronize(&self) -> Result<()> {
        cu!(cuStreamSynchronize(self.0))
    }

    /// Makes later work of the stream wait for an event.
    pub fn wait(&self, event: &Event) -> Result<()> {
        cu!(cuStreamWaitEvent(self.0, event.0, 0))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        cu!(cuStreamDestroy_v2(self.0)).ok();
    }
}

/// A marker in a stream.
pub struct Event(pub sys::CUevent);

// SAFETY: as for streams.
unsafe impl Send for Event {}

impl Event {
    /// An event for ordering only.
    pub fn new() -> Result<Event> {
        Event::with(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// An event that records its time.
    pub fn timed() -> Result<Event> {
        Event::with(sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn with(flags: sys::CUevent_flags) -> Result<Event> {
        let mut raw = std::ptr::null_mut();
        cu!(cuEventCreate(&mut raw, flags as u32))?;
        Ok(Event(raw))
    }

    /// Records the event after all work of a stream so far.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        cu!(cuEventRecord(self.0, stream.0))
    }

    /// Waits for the event.
    pub fn synchronize(&self) -> Result<()> {
        cu!(cuEventSynchronize(self.0))
    }

    /// Whether all preceding work has finished.
    pub fn state(&self) -> Result<bool> {
        // SAFETY: a live event.
        match unsafe { sys::cuEventQuery(self.0) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            answer => check("cuEventQuery", answer).map(|()| true),
        }
    }

    /// Seconds since an earlier event. Both must have completed.
    pub fn since(&self, earlier: &Event) -> Result<f64> {
        let mut ms = 0.0;
        cu!(cuEventElapsedTime_v2(&mut ms, earlier.0, self.0))?;
        Ok(f64::from(ms) / 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        cu!(cuEventDestroy_v2(self.0)).ok();
    }
}

/// Loaded machine code.
pub struct Module(sys::CUmodule);

// SAFETY: as for streams.
unsafe impl Send for Module {}

impl Module {
    /// Loads a compiled cubin.
    pub fn load(cubin: &[u8]) -> Result<Module> {
        let mut raw = std::ptr::null_mut();
        cu!(cuModuleLoadData(&mut raw, cubin.as_ptr().cast()))?;
        Ok(Module(raw))
    }

    /// A kernel of the module.
    pub fn function(&self, name: &str) -> Result<sys::CUfunction> {
        let mut raw = std::ptr::null_mut();
        let name = CString::new(name).map_err(|e| Failure(e.to_string()))?;
        cu!(cuModuleGetFunction(&mut raw, self.0, name.as_ptr()))?;
        Ok(raw)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        cu!(cuModuleUnload(self.0)).ok();
    }
}

/// A captured graph, ready to be replayed.
pub struct Graph(sys::CUgraphExec);

// SAFETY: as for streams.
unsafe impl Send for Graph {}

impl Graph {
    /// Captures the work that `record` issues to `stream`, and to streams that wait for it.
    pub fn capture(stream: &Stream, record: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        cu!(cuStreamBeginCapture_v2(stream.0, mode))?;
        let recorded = record();
        let mut graph = std::ptr::null_mut();
        let ended = cu!(cuStreamEndCapture(stream.0, &mut graph));
        recorded.and(ended)?;
        let mut raw = std::ptr::null_mut();
        let made = cu!(cuGraphInstantiateWithFlags(&mut raw, graph, 0));
        cu!(cuGraphDestroy(graph))?;
        made?;
        Ok(Graph(raw))
    }

    /// Replays the captured work.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        cu!(cuGraphLaunch(self.0, stream.0))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        cu!(cuGraphExecDestroy(self.0)).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_needs::needs;

    /// Keeps the default stream busy: many passes over a large buffer.
    fn occupy_default_stream(buffer: &DeviceBuffer) {
        for _ in 0..200 {
            cu!(cuMemsetD8Async(buffer.at(), 1, buffer.bytes(), std::ptr::null_mut())).unwrap();
        }
    }

    #[needs(gpu)]
    #[test]
    fn a_new_buffer_is_not_cleared_after_a_copy_to_it() {
        let context = Context::new(0).unwrap();
        context.enter().unwrap();
        let (large, stream) = (DeviceBuffer::new(1 << 30).unwrap(), Stream::new().unwrap());
        let mut host = PinnedBuffer::new(1 << 20).unwrap();
        host.as_mut_slice().fill(7);
        occupy_default_stream(&large);
        let buffer = DeviceBuffer::new(1 << 20).unwrap();
        let from = host.as_slice().as_ptr().cast();
        cu!(cuMemcpyHtoDAsync_v2(buffer.at(), from, 1 << 20, stream.0)).unwrap();
        stream.synchronize().unwrap();
        let mut back = vec![0u8; 1 << 20];
        cu!(cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), buffer.at(), back.len())).unwrap();
        assert!(back.iter().all(|byte| *byte == 7));
    }

    #[needs(gpu)]
    #[test]
    fn copied_bytes_have_arrived_before_work_of_other_streams() {
        let context = Context::new(0).unwrap();
        context.enter().unwrap();
        let (large, stream) = (DeviceBuffer::new(1 << 30).unwrap(), Stream::new().unwrap());
        let (from, to) = (DeviceBuffer::new(1 << 12).unwrap(), DeviceBuffer::new(1 << 12).unwrap());
        occupy_default_stream(&large);
        copy_to_device(from.at(), &[7; 1 << 12]).unwrap();
        cu!(cuMemcpyDtoDAsync_v2(to.at(), from.at(), 1 << 12, stream.0)).unwrap();
        stream.synchronize().unwrap();
        let mut back = [0u8; 1 << 12];
        cu!(cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), to.at(), back.len())).unwrap();
        assert_eq!(back, [7; 1 << 12]);
    }
}
