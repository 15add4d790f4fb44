//! The loads on an NVIDIA GPU.

use crate::gpu::{Gpu, Kernels, Stream};

use super::Accelerator;

pub(super) struct Device {
    gpu: &'static Gpu,
    kernels: Kernels,
    stream: Stream<'static>,
}

impl Device {
    pub(super) fn open(calibration: Option<&str>) -> anyhow::Result<Self> {
        let gpu = Gpu::open()?;
        let calibration = calibration.map(str::parse).transpose().map_err(anyhow::Error::msg)?;
        Ok(Self { gpu, kernels: Kernels::load(gpu, calibration)?, stream: gpu.create_stream(None)? })
    }
}

impl Accelerator for Device {
    fn launch(&mut self, length_us: u64) -> anyhow::Result<()> {
        self.kernels.launch(&self.stream, length_us as f64)
    }

    fn synchronize(&mut self) -> anyhow::Result<()> {
        self.stream.synchronize()
    }

    fn describe(&self) -> (String, String) {
        (self.gpu.name.clone(), self.kernels.calibration.to_string())
    }

    fn compute(&mut self, _commands: u32, _length_us: u64) -> anyhow::Result<u64> {
        anyhow::bail!(
            "there is no built-in computation for CUDA: give a command, such as `-- python inference.py`"
        )
    }
}
