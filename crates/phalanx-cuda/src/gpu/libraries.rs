//! NVIDIA's libraries of products and convolutions, each opened on first use.

use crate::algorithms::{Choices, ConvRequest, conv_key, gemm_key};
use crate::cublas::{Cublas, GemmPlan};
use crate::cudnn::{ConvPlan, Cudnn};
use crate::work_item::{Conv, Gemm};
use phalanx_cuda_driver::driver::{Failure, Result, Stream};
use phalanx_cuda_driver::libs::{self, Lib};

/// The libraries opened so far, and how their plans are chosen.
pub(super) struct Libraries {
    cudnn: Option<Cudnn>,
    cublas: Option<Cublas>,
    /// Product name, which identifies the model in the choices.
    model: String,
    choices: Choices,
    /// Whether products of 32-bit floats may be rounded for the tensor cores.
    tf32: bool,
}

impl Libraries {
    /// For GPUs of a model.
    pub fn new(model: String) -> Result<Libraries> {
        let tf32 = std::env::var("PHALANX_TF32").map_or(true, |v| v != "0");
        Ok(Libraries { cudnn: None, cublas: None, model, choices: Choices::load()?, tf32 })
    }

    /// A plan of a convolution, tried on `stream`; `None` if cuDNN does not support it.
    pub fn plan_conv(
        &mut self,
        conv: &Conv,
        at: [u64; 3],
        stream: &Stream,
    ) -> Result<Option<ConvPlan>> {
        if self.cudnn.is_none() {
            libs::find(Lib::Cudnn).map_err(|e| Failure(e.to_string()))?;
            self.cudnn = Some(Cudnn::new()?);
        }
        let cudnn = self.cudnn.as_ref().expect("opened above");
        let key = conv_key(conv, self.tf32, &self.model);
        let request = ConvRequest { conv, at, tf32: self.tf32, key, stream };
        request.choose(cudnn, &mut self.choices)
    }

    /// The plan of a product, and its key in the table.
    pub fn plan_gemm(&mut self, gemm: &Gemm, bias: Option<u64>) -> Result<(GemmPlan, String)> {
        if self.cublas.is_none() {
            libs::find(Lib::CublasLt).map_err(|e| Failure(e.to_string()))?;
            self.cublas = Some(Cublas::new()?);
        }
        let cublas = self.cublas.as_ref().expect("opened above");
        let mut plan = cublas.plan(gemm, bias, self.tf32)?;
        let key = gemm_key(gemm, self.tf32, &self.model);
        if let Some(algorithm) = self.choices.get(&key) {
            plan.choose_described(algorithm);
        }
        Ok((plan, key))
    }

    /// The known choices.
    pub fn choices(&mut self) -> &mut Choices {
        &mut self.choices
    }

    /// cuDNN, which a plan needs.
    pub fn cudnn(&self) -> &Cudnn {
        self.cudnn.as_ref().expect("opened for the plan")
    }

    /// cuBLASLt, which a plan needs.
    pub fn cublas(&self) -> &Cublas {
        self.cublas.as_ref().expect("opened for the plan")
    }

    /// Closes all libraries.
    pub fn close(&mut self) {
        (self.cudnn, self.cublas) = (None, None);
    }
}
