//! The loads on an NVIDIA GPU.

use crate::gpu::{Gpu, Kernels, Stream};

use super::super::program::Fnv;
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

    /// Each command reads the results of the one before. The numbers of two arrays take turns, so that a kernel that runs twice, not at all or
    /// before another one leaves others.
    fn compute(&mut self, commands: u32, length_us: u64) -> anyhow::Result<u64> {
        let mut numbers: Vec<u32> = (0..self.kernels.threads()).collect();
        let count = numbers.len() as u64;
        let mut arrays = [(); 2].map(|()| self.gpu.allocate(size_of_val(numbers.as_slice())));
        let [Ok(to), Ok(from)] = &mut arrays else { anyhow::bail!("the GPU has too little free memory") };
        self.gpu.copy_to_device(*from, &numbers)?;
        for command in 1..=commands {
            self.kernels.add(
                &self.stream,
                length_us as f64,
                [*to, *from],
                command.wrapping_mul(command),
                count,
            )?;
            std::mem::swap(to, from);
        }
        self.stream.synchronize()?;
        self.gpu.copy_to_host(*from, &mut numbers)?;
        let mut checksum = Fnv::EMPTY;
        for number in &numbers {
            checksum.update(&number.to_le_bytes());
        }
        Ok(checksum.0)
    }
}
