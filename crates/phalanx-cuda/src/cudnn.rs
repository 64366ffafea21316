//! Convolutions with cuDNN's graph API: one operation, the engines its heuristics propose, and an
//! execution plan for one of them.

use crate::launch::{Elem, Ptr};
use crate::work_item::{Conv, Images, Pass};
use cudarc::cudnn::sys::{
    self, cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Kind,
    cudnnBackendDescriptorType_t as Type, cudnnBackendNumericalNote_t as Note,
    cudnnStatus_t as Status,
};
use phalanx_cuda_driver::driver::{Failure, Result, Stream};
use phalanx_cuda_driver::libs::{Lib, find};
use phalanx_graph::ConvGeom;
use std::ffi::{CStr, c_char, c_void};
use std::mem::transmute;
use std::sync::OnceLock;

/// Ids of a convolution's tensors inside its plan.
const IDS: [i64; 3] = [1, 2, 3];

/// Maximum engines to request of each heuristic.
const MAX_PROPOSALS: usize = 16;

/// Maximum settings of an engine.
const MAX_KNOBS: usize = 64;

/// Numerical notes of engines that may have to be excluded.
const NOT_DETERMINISTIC: u32 = Note::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC as u32;
const TENSOR_CORES: u32 = Note::CUDNN_NUMERICAL_NOTE_TENSOR_CORE as u32;
const NARROWS_INPUTS: u32 = Note::CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS as u32;

/// Declares the functions in use, which are looked up in the copy of the library that `find` has opened.
macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// The library's functions. The bindings would open a copy of their own choice, and if a Python framework in the same
        /// process has loaded another one, then parts of the two, which load each other by name, are mixed.
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Functions {
            fn load() -> std::result::Result<Functions, String> {
                let found = find(Lib::Cudnn).map_err(|missing| missing.to_string())?;
                let address = |name: &str| {
                    found.address(name).ok_or_else(|| format!("{} has no {name}", found.path.display()))
                };
                Ok(Functions {
                    $($field: {
                        let address = address($symbol)?;
                        // SAFETY: the function of this name in cuDNN 9 has this type.
                        unsafe {
                            transmute::<usize, unsafe extern "C" fn($($argument),*) -> $result>(address)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    create = "cudnnCreate": fn(*mut sys::cudnnHandle_t) -> Status;
    destroy = "cudnnDestroy": fn(sys::cudnnHandle_t) -> Status;
    set_stream = "cudnnSetStream": fn(sys::cudnnHandle_t, sys::cudaStream_t) -> Status;
    error_string = "cudnnGetErrorString": fn(Status) -> *const c_char;
    create_descriptor = "cudnnBackendCreateDescriptor":
        fn(Type, *mut sys::cudnnBackendDescriptor_t) -> Status;
    destroy_descriptor = "cudnnBackendDestroyDescriptor": fn(sys::cudnnBackendDescriptor_t) -> Status;
    set_attribute = "cudnnBackendSetAttribute":
        fn(sys::cudnnBackendDescriptor_t, Name, Kind, i64, *const c_void) -> Status;
    get_attribute = "cudnnBackendGetAttribute":
        fn(sys::cudnnBackendDescriptor_t, Name, Kind, i64, *mut i64, *mut c_void) -> Status;
    finalize = "cudnnBackendFinalize": fn(sys::cudnnBackendDescriptor_t) -> Status;
    execute = "cudnnBackendExecute":
        fn(sys::cudnnHandle_t, sys::cudnnBackendDescriptor_t, sys::cudnnBackendDescriptor_t) -> Status;
}

/// The library's functions, looked up once.
fn functions() -> Result<&'static Functions> {
    static FUNCTIONS: OnceLock<std::result::Result<Functions, String>> = OnceLock::new();
    FUNCTIONS.get_or_init(Functions::load).as_ref().map_err(|reason| Failure(reason.clone()))
}

fn check(what: &str, answer: Status) -> Result<()> {
    if answer == Status::CUDNN_STATUS_SUCCESS {
        return Ok(());
    }
    // SAFETY: the library returns a constant string.
    let reason = unsafe { CStr::from_ptr((functions()?.error_string)(answer)) };
    Err(Failure(format!("{what}: {}", reason.to_string_lossy())))
}

/// A descriptor of the library, destroyed when dropped.
struct Desc(sys::cudnnBackendDescriptor_t);

impl Desc {
    fn new(kind: Type) -> Result<Desc> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: a local receives the handle.
        let made = unsafe { (functions()?.create_descriptor)(kind, &mut raw) };
        check("cudnnBackendCreateDescriptor", made)?;
        Ok(Desc(raw))
    }

    /// Sets an attribute of several elements, whose Rust type has the attribute's layout.
    fn set<T>(&self, name: Name, kind: Kind, values: &[T]) -> Result<()> {
        // SAFETY: a live descriptor; the library reads that many elements.
        let set = unsafe {
            let values_at: *const c_void = values.as_ptr().cast();
            (functions()?.set_attribute)(self.0, name, kind, values.len() as i64, values_at)
        };
        check(&format!("cuDNN attribute {name:?}"), set)
    }

    fn set_numbers(&self, name: Name, values: &[i64]) -> Result<()> {
        self.set(name, Kind::CUDNN_TYPE_INT64, values)
    }

    fn set_desc(&self, name: Name, value: &Desc) -> Result<()> {
        self.set(name, Kind::CUDNN_TYPE_BACKEND_DESCRIPTOR, &[value.0])
    }

    /// Reads at most `buffer.len()` elements. Returns how many there are.
    fn get<T>(&self, name: Name, kind: Kind, buffer: &mut [T]) -> Result<usize> {
        let mut count = 0;
        // SAFETY: as in `set`; the library writes no more than requested.
        let got = unsafe {
            let to: *mut c_void = buffer.as_mut_ptr().cast();
            (functions()?.get_attribute)(self.0, name, kind, buffer.len() as i64, &mut count, to)
        };
        check(&format!("cuDNN attribute {name:?}"), got)?;
        Ok(buffer.len().min(count.max(0) as usize))
    }

    fn finalize(self) -> Result<Desc> {
        // SAFETY: a live descriptor.
        check("cudnnBackendFinalize", unsafe { (functions()?.finalize)(self.0) })?;
        Ok(self)
    }
}

impl Drop for Desc {
    fn drop(&mut self) {
        if let Ok(functions) = functions() {
            // SAFETY: made by the library, destroyed once.
            unsafe { (functions.destroy_descriptor)(self.0) };
        }
    }
}

// SAFETY: descriptors are plain data of the library, used by one thread at a time.
unsafe impl Send for Desc {}

/// A plan to compute a convolution.
pub(crate) struct ConvPlan {
    plan: Desc,
    /// Workspace that it needs, in bytes.
    pub workspace: usize,
}

/// The library, on one GPU.
pub(crate) struct Cudnn(sys::cudnnHandle_t);

// SAFETY: the handle is used by one thread at a time.
unsafe impl Send for Cudnn {}

impl Cudnn {
    /// Opens the library for the current context.
    pub fn new() -> Result<Cudnn> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: a local receives the handle.
        check("cudnnCreate", unsafe { (functions()?.create)(&mut raw) })?;
        Ok(Cudnn(raw))
    }

    /// The engines proposed for a convolution, the most promising first. Nondeterministic engines
    /// are excluded. `tf32` allows 32-bit floats to be rounded to 10 bits of mantissa.
    pub fn proposals(&self, conv: &Conv, tf32: bool) -> Result<Proposals> {
        let graph = self.operation_graph(conv)?;
        let mut configs = vec![];
        for mode in [
            sys::cudnnBackendHeurMode_t::CUDNN_HEUR_MODE_A,
            sys::cudnnBackendHeurMode_t::CUDNN_HEUR_MODE_FALLBACK,
        ] {
            configs.extend(propose(&graph, mode).unwrap_or_default());
        }
        let float = [conv.x.elem, conv.y.elem, conv.w.1].contains(&Elem::F32);
        configs.retain(|c| {
            let notes = notes(c).unwrap_or_default();
            !notes.contains(&NOT_DETERMINISTIC)
                && (tf32
                    || !float
                    || ![NARROWS_INPUTS, TENSOR_CORES].iter().any(|n| notes.contains(n)))
        });
        Ok(Proposals { configs, _graph: graph })
    }

    fn operation_graph(&self, conv: &Conv) -> Result<Desc> {
        let g = &conv.geom;
        let ([ih, iw, ic], [oh, ow, oc]) = (g.input, g.output);
        let x = images(IDS[0], conv, &conv.x, &axes(g, g.depth.input, [ih, iw]), ic)?;
        let y = images(IDS[2], conv, &conv.y, &axes(g, g.depth.output, [oh, ow]), oc)?;
        let w = filters(IDS[1], conv)?;
        let how = convolution(conv)?;
        use Name as N;
        let (kind, names) = match conv.pass {
            Pass::Forward => (
                Type::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                [
                    N::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                    N::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                    N::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                    N::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                    N::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                    N::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                ],
            ),
            Pass::GradInput => (
                Type::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                [
                    N::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                    N::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                    N::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                    N::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                    N::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                    N::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                ],
            ),
            Pass::GradKernel => (
                Type::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                [
                    N::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                    N::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                    N::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                    N::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                    N::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                    N::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                ],
            ),
        };
        let op = Desc::new(kind)?;
        for (name, desc) in names.into_iter().zip([&x, &w, &y, &how]) {
            op.set_desc(name, desc)?;
        }
        op.set(names[4], Kind::CUDNN_TYPE_FLOAT, &[1f32])?;
        op.set(names[5], Kind::CUDNN_TYPE_FLOAT, &[0f32])?;
        let op = op.finalize()?;
        let graph = Desc::new(Type::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
        graph.set(N::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, Kind::CUDNN_TYPE_HANDLE, &[self.0])?;
        graph.set_desc(N::CUDNN_ATTR_OPERATIONGRAPH_OPS, &op)?;
        graph.finalize()
    }

    /// Builds the plan of a proposal. Fails if the engine does not support these operands.
    pub fn plan(&self, proposals: &Proposals, index: usize) -> Result<ConvPlan> {
        let plan = Desc::new(Type::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
        let handle = Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE;
        plan.set(handle, Kind::CUDNN_TYPE_HANDLE, &[self.0])?;
        let config = Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG;
        plan.set_desc(config, &proposals.configs[index])?;
        let plan = plan.finalize()?;
        let mut bytes = [0i64];
        let size = Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE;
        plan.get(size, Kind::CUDNN_TYPE_INT64, &mut bytes)?;
        Ok(ConvPlan { plan, workspace: bytes[0].max(0) as usize })
    }

    /// Runs a plan; the addresses are those of `x`, `w` and `y`.
    pub fn execute(
        &self,
        plan: &ConvPlan,
        addresses: [u64; 3],
        workspace: u64,
        stream: &Stream,
    ) -> Result<()> {
        // SAFETY: live handle and stream; the two libraries name the same type differently.
        let set = unsafe { (functions()?.set_stream)(self.0, stream.0.cast()) };
        check("cudnnSetStream", set)?;
        let pack = Desc::new(Type::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?;
        let pointer = Kind::CUDNN_TYPE_VOID_PTR;
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, pointer, &addresses)?;
        pack.set_numbers(Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &IDS)?;
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, pointer, &[workspace])?;
        let pack = pack.finalize()?;
        // SAFETY: the plan was built for operands of these sizes, which the caller provides.
        let done = unsafe { (functions()?.execute)(self.0, plan.plan.0, pack.0) };
        check("cudnnBackendExecute", done)
    }
}

impl Drop for Cudnn {
    fn drop(&mut self) {
        if let Ok(functions) = functions() {
            // SAFETY: made by `cudnnCreate`, destroyed once.
            unsafe { (functions.destroy)(self.0) };
        }
    }
}

/// The engines proposed for one convolution.
pub(crate) struct Proposals {
    configs: Vec<Desc>,
    _graph: Desc,
}

impl Proposals {
    pub fn len(&self) -> usize {
        self.configs.len()
    }

    /// The engine of a proposal and its settings. Unlike its position, they mean the same in every version of the
    /// library.
    pub fn describe(&self, index: usize) -> Result<String> {
        let config = &self.configs[index];
        let knobs: Vec<String> =
            settings(config)?.iter().map(|(knob, value)| format!("{knob}={value}")).collect();
        Ok(format!("engine {} {}", engine_index(&engine(config)?)?, knobs.join(",")))
    }

    /// The position of a described proposal.
    pub fn position(&self, description: &str) -> Option<usize> {
        let matches = |index: &usize| self.describe(*index).is_ok_and(|d| d == description);
        (0..self.configs.len()).find(matches)
    }
}

fn data_type(elem: Elem) -> sys::cudnnDataType_t {
    match elem {
        Elem::F32 => sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
        Elem::F64 => sys::cudnnDataType_t::CUDNN_DATA_DOUBLE,
        Elem::I32 => sys::cudnnDataType_t::CUDNN_DATA_INT32,
        Elem::Bf16 => sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16,
        Elem::F16 => sys::cudnnDataType_t::CUDNN_DATA_HALF,
    }
}

fn tensor(id: i64, elem: Elem, at: Ptr, dims: &[usize], strides: &[usize]) -> Result<Desc> {
    let desc = Desc::new(Type::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
    let kind = Kind::CUDNN_TYPE_DATA_TYPE;
    desc.set(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, kind, &[data_type(elem)])?;
    desc.set_numbers(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, &numbers(dims))?;
    desc.set_numbers(Name::CUDNN_ATTR_TENSOR_STRIDES, &numbers(strides))?;
    desc.set_numbers(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[id])?;
    desc.set_numbers(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[i64::from(at.alignment().min(16))])?;
    desc.finalize()
}

fn numbers(v: &[usize]) -> Vec<i64> {
    v.iter().map(|n| *n as i64).collect()
}

/// The numbers of a geometry's spatial axes in the library's order: depth (of volumes only), height, width.
fn axes(g: &ConvGeom, depth: usize, [height, width]: [usize; 2]) -> Vec<usize> {
    if g.is_flat() { vec![height, width] } else { vec![depth, height, width] }
}

/// A tensor with channels last, in the library's order of dimensions: `outer`, channels, spatial axes. Pixels are `x.ld`
/// elements apart.
fn channels_last(
    id: i64,
    x: &Images,
    outer: usize,
    sizes: &[usize],
    channels: usize,
) -> Result<Desc> {
    let mut strides = vec![x.ld; sizes.len()];
    for axis in (1..sizes.len()).rev() {
        strides[axis - 1] = strides[axis] * sizes[axis];
    }
    let all = strides[0] * sizes[0];
    let dims = [&[outer, channels], sizes].concat();
    tensor(id, x.elem, x.at, &dims, &[&[all, 1], &strides[..]].concat())
}

fn images(id: i64, conv: &Conv, x: &Images, sizes: &[usize], channels: usize) -> Result<Desc> {
    channels_last(id, x, conv.rows, sizes, channels)
}

fn filters(id: i64, conv: &Conv) -> Result<Desc> {
    let g = &conv.geom;
    let channels = g.input[2] / g.groups;
    let sizes = axes(g, g.depth.kernel, g.kernel);
    let (at, elem) = conv.w;
    channels_last(id, &Images { at, elem, ld: channels }, g.output[2], &sizes, channels)
}

fn convolution(conv: &Conv) -> Result<Desc> {
    let g = &conv.geom;
    let d = &g.depth;
    let [ih, iw, _] = g.input;
    let [oh, ow, _] = g.output;
    let (input, output) = (axes(g, d.input, [ih, iw]), axes(g, d.output, [oh, ow]));
    let (kernel, stride) = (axes(g, d.kernel, g.kernel), axes(g, d.stride, g.stride));
    let (dilation, pad) = (axes(g, d.dilation, g.dilation), axes(g, d.pad, g.pad));
    // The padding after the input follows from the sizes.
    let pad_after = |a: usize| {
        let span = (output[a] - 1) * stride[a] + (kernel[a] - 1) * dilation[a] + 1;
        (span as i64 - (input[a] + pad[a]) as i64).max(0)
    };
    let after: Vec<i64> = (0..input.len()).map(pad_after).collect();
    let desc = Desc::new(Type::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?;
    desc.set_numbers(Name::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, &[input.len() as i64])?;
    let compute = [sys::cudnnDataType_t::CUDNN_DATA_FLOAT];
    desc.set(Name::CUDNN_ATTR_CONVOLUTION_COMP_TYPE, Kind::CUDNN_TYPE_DATA_TYPE, &compute)?;
    let mode = [sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION];
    let kind = Kind::CUDNN_TYPE_CONVOLUTION_MODE;
    desc.set(Name::CUDNN_ATTR_CONVOLUTION_CONV_MODE, kind, &mode)?;
    desc.set_numbers(Name::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, &numbers(&pad))?;
    desc.set_numbers(Name::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, &after)?;
    desc.set_numbers(Name::CUDNN_ATTR_CONVOLUTION_DILATIONS, &numbers(&dilation))?;
    desc.set_numbers(Name::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, &numbers(&stride))?;
    desc.finalize()
}

fn propose(graph: &Desc, mode: sys::cudnnBackendHeurMode_t) -> Result<Vec<Desc>> {
    let heuristic = Desc::new(Type::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
    heuristic.set_desc(Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)?;
    let kind = Kind::CUDNN_TYPE_HEUR_MODE;
    heuristic.set(Name::CUDNN_ATTR_ENGINEHEUR_MODE, kind, &[mode])?;
    let heuristic = heuristic.finalize()?;
    let mut configs: Vec<Desc> = (0..MAX_PROPOSALS)
        .map(|_| Desc::new(Type::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR))
        .collect::<Result<_>>()?;
    let mut raw: Vec<_> = configs.iter().map(|c| c.0).collect();
    let kind = Kind::CUDNN_TYPE_BACKEND_DESCRIPTOR;
    let found = heuristic.get(Name::CUDNN_ATTR_ENGINEHEUR_RESULTS, kind, &mut raw)?;
    configs.truncate(found);
    Ok(configs)
}

/// The engine of a configuration.
fn engine(config: &Desc) -> Result<Desc> {
    let engine = Desc::new(Type::CUDNN_BACKEND_ENGINE_DESCRIPTOR)?;
    let kind = Kind::CUDNN_TYPE_BACKEND_DESCRIPTOR;
    config.get(Name::CUDNN_ATTR_ENGINECFG_ENGINE, kind, &mut [engine.0])?;
    Ok(engine)
}

/// The number of an engine in the library.
fn engine_index(engine: &Desc) -> Result<i64> {
    let mut index = [0i64];
    engine.get(Name::CUDNN_ATTR_ENGINE_GLOBAL_INDEX, Kind::CUDNN_TYPE_INT64, &mut index)?;
    Ok(index[0])
}

/// The settings of a configuration: knobs and their values.
fn settings(config: &Desc) -> Result<Vec<(i32, i64)>> {
    let choices: Vec<Desc> = (0..MAX_KNOBS)
        .map(|_| Desc::new(Type::CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR))
        .collect::<Result<_>>()?;
    let mut raw: Vec<_> = choices.iter().map(|choice| choice.0).collect();
    let kind = Kind::CUDNN_TYPE_BACKEND_DESCRIPTOR;
    let count = config.get(Name::CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, kind, &mut raw)?;
    let setting = |choice: &Desc| {
        let (mut knob, mut value) = ([0i32], [0i64]);
        choice.get(
            Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
            Kind::CUDNN_TYPE_KNOB_TYPE,
            &mut knob,
        )?;
        choice.get(Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, Kind::CUDNN_TYPE_INT64, &mut value)?;
        Ok((knob[0], value[0]))
    };
    choices[..count].iter().map(setting).collect()
}

/// The numerical notes of an engine.
fn notes(config: &Desc) -> Result<Vec<u32>> {
    let mut notes = [0u32; 16];
    let kind = Kind::CUDNN_TYPE_NUMERICAL_NOTE;
    let count = engine(config)?.get(Name::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, kind, &mut notes)?;
    Ok(notes[..count].to_vec())
}
