//! Matrix products with cuBLASLt.

use crate::launch::Elem;
use crate::work_item::{Batch, Gemm, Matrix};
use cudarc::cublaslt::sys::{
    self, cublasComputeType_t as Compute, cublasLtEpilogue_t as Epilogue,
    cublasLtMatmulAlgoConfigAttributes_t as Setting, cublasLtMatmulDescAttributes_t as Attribute,
    cublasLtMatrixLayoutAttribute_t as LayoutAttribute, cublasStatus_t as Status,
    cudaDataType_t as Type,
};
use phalanx_cuda_driver::driver::{Failure, Result, Stream};
use std::ffi::c_void;

/// Maximum workspace of a product, in bytes.
pub(crate) const WORKSPACE: usize = 32 << 20;

/// Maximum proposals to request.
const MAX_PROPOSALS: usize = 12;

/// Split-k reduction schemes whose results do not depend on execution order: over the workspace, in
/// the compute type or in the type of the result.
const REPEATABLE: u32 = 2 | 4;

fn check(what: &str, answer: Status) -> Result<()> {
    match answer {
        Status::CUBLAS_STATUS_SUCCESS => Ok(()),
        other => Err(Failure(format!("{what}: {other:?}"))),
    }
}

/// An object of the library, with the function that destroys it.
struct Owned<T: Copy>(T, unsafe fn(T) -> Status);

impl<T: Copy> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: made by the library, destroyed once.
        unsafe { (self.1)(self.0) };
    }
}

/// A prepared product.
pub(crate) struct GemmPlan {
    desc: Owned<sys::cublasLtMatmulDesc_t>,
    /// Of `b`, `a` and `c`: the library is column-major, so it computes `cᵀ = bᵀ · aᵀ`.
    layouts: [Owned<sys::cublasLtMatrixLayout_t>; 3],
    /// The library's proposals, in its own order of preference.
    proposals: Vec<sys::cublasLtMatmulHeuristicResult_t>,
    chosen: usize,
}

impl GemmPlan {
    /// Workspace that it needs, in bytes.
    pub fn workspace(&self) -> usize {
        self.proposals[self.chosen].workspaceSize
    }

    /// Number of proposals.
    pub fn proposals(&self) -> usize {
        self.proposals.len()
    }

    /// Selects a proposal.
    pub fn choose(&mut self, index: usize) {
        self.chosen = index;
    }

    /// The settings of the selected algorithm.
    pub fn describe(&self) -> Result<String> {
        let settings: Result<Vec<String>> = SETTINGS
            .iter()
            .map(|(name, bytes)| setting(&self.proposals[self.chosen].algo, *name, *bytes))
            .map(|value| value.map(|v| v.to_string()))
            .collect();
        Ok(format!("algorithm {}", settings?.join(",")))
    }

    /// Selects the described algorithm if it is among the proposals, else the library's first proposal.
    pub fn choose_described(&mut self, description: &str) {
        for index in 0..self.proposals.len() {
            self.chosen = index;
            if self.describe().is_ok_and(|d| d == description) {
                return;
            }
        }
        self.chosen = 0;
    }
}

/// What identifies an algorithm of the library, and the bytes of each value.
const SETTINGS: [(Setting, usize); 9] = [
    (Setting::CUBLASLT_ALGO_CONFIG_ID, 4),
    (Setting::CUBLASLT_ALGO_CONFIG_TILE_ID, 4),
    (Setting::CUBLASLT_ALGO_CONFIG_STAGES_ID, 4),
    (Setting::CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4),
    (Setting::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4),
    (Setting::CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4),
    (Setting::CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4),
    (Setting::CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2),
    (Setting::CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2),
];

/// A setting of an algorithm.
fn setting(algo: &sys::cublasLtMatmulAlgo_t, name: Setting, bytes: usize) -> Result<u32> {
    let (mut value, mut written) = (0u32, 0);
    // SAFETY: the library writes at most this number of bytes to a local, which is zero and little-endian.
    let got = unsafe {
        let to: *mut c_void = std::ptr::from_mut(&mut value).cast();
        sys::cublasLtMatmulAlgoConfigGetAttribute(algo, name, to, bytes, &mut written)
    };
    check(&format!("cuBLASLt setting {name:?}"), got)?;
    Ok(value)
}

// SAFETY: descriptors are plain data of the library, used by one thread at a time.
unsafe impl Send for GemmPlan {}

/// The library, on one GPU.
pub(crate) struct Cublas(sys::cublasLtHandle_t);

// SAFETY: the handle is used by one thread at a time.
unsafe impl Send for Cublas {}

fn data_type(elem: Elem) -> Type {
    match elem {
        Elem::F32 => Type::CUDA_R_32F,
        Elem::F64 => Type::CUDA_R_64F,
        Elem::I32 => Type::CUDA_R_32I,
        Elem::Bf16 => Type::CUDA_R_16BF,
        Elem::F16 => Type::CUDA_R_16F,
    }
}

/// A matrix with `rows` rows in memory, as the library sees it: column-major, transposed. `batch` are
/// the items of a batch and the elements between them.
fn layout(
    matrix: &Matrix,
    rows: usize,
    columns: usize,
    batch: (usize, usize),
) -> Result<Owned<sys::cublasLtMatrixLayout_t>> {
    let (rows, columns) = if matrix.transposed { (columns, rows) } else { (rows, columns) };
    let mut raw = std::ptr::null_mut();
    let (ty, ld) = (data_type(matrix.elem), matrix.ld as i64);
    // SAFETY: a local receives the descriptor.
    let made =
        unsafe { sys::cublasLtMatrixLayoutCreate(&mut raw, ty, columns as u64, rows as u64, ld) };
    check("cublasLtMatrixLayoutCreate", made)?;
    let owned = Owned(raw, sys::cublasLtMatrixLayoutDestroy as unsafe fn(_) -> _);
    if batch.0 != 1 {
        let (count, stride) = (batch.0 as i32, batch.1 as i64);
        let offset = LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
        set_layout(raw, LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count)?;
        set_layout(raw, offset, &stride)?;
    }
    Ok(owned)
}

fn set_layout<T>(
    layout: sys::cublasLtMatrixLayout_t,
    name: LayoutAttribute,
    value: &T,
) -> Result<()> {
    // SAFETY: a live descriptor; the library reads a value of this size.
    let set = unsafe {
        let at: *const c_void = std::ptr::from_ref(value).cast();
        sys::cublasLtMatrixLayoutSetAttribute(layout, name, at, size_of::<T>())
    };
    check(&format!("cuBLASLt attribute {name:?}"), set)
}

fn set<T>(desc: sys::cublasLtMatmulDesc_t, name: Attribute, value: &T) -> Result<()> {
    // SAFETY: a live descriptor; the library reads a value of this size.
    let set = unsafe {
        let at: *const c_void = std::ptr::from_ref(value).cast();
        sys::cublasLtMatmulDescSetAttribute(desc, name, at, size_of::<T>())
    };
    check(&format!("cuBLASLt attribute {name:?}"), set)
}

impl Cublas {
    /// Opens the library for the current context.
    pub fn new() -> Result<Cublas> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: a local receives the handle.
        check("cublasLtCreate", unsafe { sys::cublasLtCreate(&mut raw) })?;
        Ok(Cublas(raw))
    }

    /// Prepares a product with the algorithm that the library prefers. `bias` is the address of the
    /// bias.
    pub fn plan(&self, gemm: &Gemm, bias: Option<u64>, tf32: bool) -> Result<GemmPlan> {
        let narrow = gemm.a.elem != Elem::F32;
        let compute = match tf32 && !narrow {
            true => Compute::CUBLAS_COMPUTE_32F_FAST_TF32,
            false => Compute::CUBLAS_COMPUTE_32F,
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: a local receives the descriptor.
        let made = unsafe { sys::cublasLtMatmulDescCreate(&mut raw, compute, Type::CUDA_R_32F) };
        check("cublasLtMatmulDescCreate", made)?;
        let desc = Owned(raw, sys::cublasLtMatmulDescDestroy as unsafe fn(_) -> _);
        let op = |m: &Matrix| i32::from(m.transposed);
        set(desc.0, Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &op(&gemm.b))?;
        set(desc.0, Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &op(&gemm.a))?;
        let epilogue = match (bias, gemm.relu) {
            (None, false) => Epilogue::CUBLASLT_EPILOGUE_DEFAULT,
            (None, true) => Epilogue::CUBLASLT_EPILOGUE_RELU,
            (Some(_), false) => Epilogue::CUBLASLT_EPILOGUE_BIAS,
            (Some(_), true) => Epilogue::CUBLASLT_EPILOGUE_RELU_BIAS,
        };
        set(desc.0, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
        if let Some(bias) = bias {
            set(desc.0, Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
            let ty = Type::CUDA_R_32F;
            set(desc.0, Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &ty)?;
        }
        let Batch { count, strides: [a, b, c] } = gemm.batch;
        let layouts = [
            layout(&gemm.b, gemm.k, gemm.n, (count, b))?,
            layout(&gemm.a, gemm.m, gemm.k, (count, a))?,
            layout(&gemm.c, gemm.m, gemm.n, (count, c))?,
        ];
        // Every item of a batch has the alignment.
        let aligned = [(gemm.b, b), (gemm.a, a), (gemm.c, c)].map(|(matrix, stride)| {
            let bytes = (stride * matrix.elem.bytes()) as u32;
            matrix.at.alignment().min(1 << bytes.trailing_zeros().min(8))
        });
        let proposals = self.propose(&desc, &layouts, aligned)?;
        Ok(GemmPlan { desc, layouts, proposals, chosen: 0 })
    }

    fn propose(
        &self,
        desc: &Owned<sys::cublasLtMatmulDesc_t>,
        [b, a, c]: &[Owned<sys::cublasLtMatrixLayout_t>; 3],
        aligned: [u32; 3],
    ) -> Result<Vec<sys::cublasLtMatmulHeuristicResult_t>> {
        let mut preference = std::ptr::null_mut();
        // SAFETY: a local receives the descriptor.
        let made = unsafe { sys::cublasLtMatmulPreferenceCreate(&mut preference) };
        check("cublasLtMatmulPreferenceCreate", made)?;
        let preference = Owned(preference, sys::cublasLtMatmulPreferenceDestroy);
        use sys::cublasLtMatmulPreferenceAttributes_t as Wish;
        let prefer = |wish: Wish, at: *const c_void, bytes: usize| {
            // SAFETY: a live descriptor; the library reads a value of this size.
            let set =
                unsafe { sys::cublasLtMatmulPreferenceSetAttribute(preference.0, wish, at, bytes) };
            check("cublasLtMatmulPreferenceSetAttribute", set)
        };
        let workspace: *const c_void = std::ptr::from_ref(&WORKSPACE).cast();
        prefer(Wish::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace, size_of::<usize>())?;
        let [of_b, of_a, of_c] = &aligned;
        for (wish, bytes) in [
            (Wish::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &REPEATABLE),
            (Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, of_b),
            (Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, of_a),
            (Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, of_c),
            (Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, of_c),
        ] {
            prefer(wish, std::ptr::from_ref(bytes).cast(), size_of::<u32>())?;
        }
        // SAFETY: live descriptors; the library writes at most the requested number of results, and
        // their count.
        unsafe {
            let mut results: Vec<sys::cublasLtMatmulHeuristicResult_t> =
                (0..MAX_PROPOSALS).map(|_| std::mem::zeroed()).collect();
            let mut found = 0;
            let asked = sys::cublasLtMatmulAlgoGetHeuristic(
                self.0,
                desc.0,
                b.0,
                a.0,
                c.0,
                c.0,
                preference.0,
                MAX_PROPOSALS as i32,
                results.as_mut_ptr(),
                &mut found,
            );
            check("cublasLtMatmulAlgoGetHeuristic", asked)?;
            results.truncate(usize::try_from(found).unwrap_or(0));
            if results.is_empty() {
                return Err(Failure("cuBLASLt knows no way to compute this product".into()));
            }
            Ok(results)
        }
    }

    /// Runs the product; the addresses are those of `a`, `b` and `c`.
    pub fn execute(
        &self,
        plan: &GemmPlan,
        [a, b, c]: [u64; 3],
        workspace: u64,
        stream: &Stream,
    ) -> Result<()> {
        let (one, zero) = (1f32, 0f32);
        let [lb, la, lc] = &plan.layouts;
        // SAFETY: the plan was made for operands of these sizes, which the caller provides.
        let done = unsafe {
            sys::cublasLtMatmul(
                self.0,
                plan.desc.0,
                std::ptr::from_ref(&one).cast(),
                b as *const c_void,
                lb.0,
                a as *const c_void,
                la.0,
                std::ptr::from_ref(&zero).cast(),
                c as *const c_void,
                lc.0,
                c as *mut c_void,
                lc.0,
                &plan.proposals[plan.chosen].algo,
                workspace as *mut c_void,
                plan.workspace(),
                stream.0.cast(),
            )
        };
        check("cublasLtMatmul", done)
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        // SAFETY: made by `cublasLtCreate`, destroyed once.
        unsafe { sys::cublasLtDestroy(self.0) };
    }
}
