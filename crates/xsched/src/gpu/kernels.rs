//! The kernels: `spin` keeps the whole GPU busy for a given time, `empty` does nothing, `add` does what `spin` does and then adds a number
//! to an array.
//!
//! `spin` computes a given number of rounds instead of reading a clock: the clock advances while the kernel is preempted, and
//! the kernel would do less work. The duration of a round is measured once.

use std::fmt;
use std::str::FromStr;
use std::time::Instant;

use anyhow::Context as _;

use super::driver::{Gpu, Kernel, Stream};

const THREADS_PER_BLOCK: u32 = 256;

/// Versions of PTX and of the target GPU, oldest first: new drivers reject the oldest targets.
const PTX_TARGETS: [(&str, &str); 3] = [("7.0", "sm_52"), ("7.0", "sm_75"), ("7.8", "sm_90")];

/// The rounds of `spin` and `add`: `%left` of them, on `%x`.
const PTX_ROUNDS: &str = "ROUND:
    mad.lo.u32 %x, %x, 1664525, 1013904223;
    xor.b32 %x, %x, 2463534242;
    mad.lo.u32 %x, %x, 1664525, 1013904223;
    xor.b32 %x, %x, 88172645;
    mad.lo.u32 %x, %x, 1664525, 1013904223;
    xor.b32 %x, %x, 2463534242;
    mad.lo.u32 %x, %x, 1664525, 1013904223;
    xor.b32 %x, %x, 88172645;
    sub.u64 %left, %left, 1;
    setp.ne.u64 %again, %left, 0;
    @%again bra ROUND;
";

/// The result is stored in one case of 4 billion, so that the compiler cannot remove the rounds.
const PTX_BODY: &str = "
.address_size 64

.visible .entry spin(.param .u64 rounds, .param .u64 sink)
{
    .reg .pred %again, %store;
    .reg .b32 %x;
    .reg .b64 %left, %at;
    ld.param.u64 %left, [rounds];
    ld.param.u64 %at, [sink];
    mov.u32 %x, %tid.x;
    setp.eq.u64 %again, %left, 0;
    @%again bra DONE;
{rounds}DONE:
    setp.eq.u32 %store, %x, 305419896;
    @%store st.global.u32 [%at], %x;
    ret;
}

.visible .entry empty()
{
    ret;
}

.visible .entry add(.param .u64 rounds, .param .u64 to, .param .u64 from, .param .u32 delta, .param .u64 count)
{
    .reg .pred %again, %store, %outside;
    .reg .b32 %x, %y, %d;
    .reg .b64 %left, %to, %from, %at, %count;
    ld.param.u64 %left, [rounds];
    ld.param.u64 %to, [to];
    ld.param.u64 %from, [from];
    ld.param.u32 %d, [delta];
    ld.param.u64 %count, [count];
    mov.u32 %x, %ctaid.x;
    mov.u32 %y, %ntid.x;
    mul.wide.u32 %at, %x, %y;
    mov.u32 %x, %tid.x;
    cvt.u64.u32 %left, %x;
    add.u64 %at, %at, %left;
    ld.param.u64 %left, [rounds];
    setp.eq.u64 %again, %left, 0;
    @%again bra DONE;
{rounds}DONE:
    setp.ge.u64 %outside, %at, %count;
    @%outside ret;
    shl.b64 %at, %at, 2;
    add.u64 %from, %from, %at;
    add.u64 %to, %to, %at;
    ld.global.u32 %y, [%from];
    add.u32 %y, %y, %d;
    setp.eq.u32 %store, %x, 305419896;
    @%store mov.u32 %y, %x;
    st.global.u32 [%to], %y;
    ret;
}
";

/// The duration of `spin` launched back to back: a fixed part and a part for each round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Calibration {
    pub(crate) us_per_launch: f64,
    pub(crate) us_per_round: f64,
}

impl Calibration {
    fn rounds(self, length_us: f64) -> u64 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 1 to 1e13")]
        let rounds = ((length_us - self.us_per_launch) / self.us_per_round).round().clamp(1.0, 1e13) as u64;
        rounds
    }
}

impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.us_per_launch, self.us_per_round)
    }
}

impl FromStr for Calibration {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| part.parse().ok().filter(|n: &f64| n.is_finite());
        let both = text.split_once(':').and_then(|(launch, round)| Some((number(launch)?, number(round)?)));
        both.filter(|(launch, round)| *launch >= 0.0 && *round > 0.0)
            .map(|(us_per_launch, us_per_round)| Self { us_per_launch, us_per_round })
            .ok_or_else(|| format!("calibration `{text}` is not two numbers such as 2.1:0.013"))
    }
}

/// The loaded kernels.
pub(crate) struct Kernels {
    spin: Kernel,
    empty: Kernel,
    add: Kernel,
    blocks: u32,
    sink: u64,
    pub(crate) calibration: Calibration,
}

impl Kernels {
    /// Compiles the kernels, and calibrates `spin` unless a calibration is given.
    pub(crate) fn load(gpu: &Gpu, calibration: Option<Calibration>) -> anyhow::Result<Self> {
        let mut result = Err(anyhow::anyhow!("no PTX target"));
        let body = PTX_BODY.replace("{rounds}", PTX_ROUNDS);
        for (version, target) in PTX_TARGETS {
            result = gpu.load_module(&format!(".version {version}\n.target {target}{body}"));
            if result.is_ok() {
                break;
            }
        }
        let module = result.context("the driver rejects the kernels")?;
        let mut kernels = Self {
            spin: gpu.kernel(&module, c"spin")?,
            empty: gpu.kernel(&module, c"empty")?,
            add: gpu.kernel(&module, c"add")?,
            blocks: gpu.max_threads()?.div_ceil(THREADS_PER_BLOCK),
            sink: gpu.allocate(4)?,
            calibration: Calibration { us_per_launch: 0.0, us_per_round: 1.0 },
        };
        let stream = gpu.create_stream(None)?;
        kernels.calibration = match calibration {
            Some(calibration) => calibration,
            None => kernels.measure(&stream)?,
        };
        // The first launch of a kernel is slow.
        kernels.spin(&stream, 1.0)?;
        kernels.empty(&stream)?;
        stream.synchronize()?;
        Ok(kernels)
    }

    /// Launches a kernel that keeps the GPU busy for this time.
    pub(crate) fn spin(&self, stream: &Stream<'_>, length_us: f64) -> anyhow::Result<()> {
        self.launch_rounds(stream, self.calibration.rounds(length_us))
    }

    /// Launches the empty kernel.
    pub(crate) fn empty(&self, stream: &Stream<'_>) -> anyhow::Result<()> {
        stream.launch(&self.empty, 1, 32, [])
    }

    /// Launches a kernel of this length; length 0 is the empty kernel.
    pub(crate) fn launch(&self, stream: &Stream<'_>, length_us: f64) -> anyhow::Result<()> {
        if length_us > 0.0 { self.spin(stream, length_us) } else { self.empty(stream) }
    }

    /// Launches a kernel of this length that sets the numbers at `to` to those at `from` plus `delta`.
    pub(crate) fn add(
        &self,
        stream: &Stream<'_>,
        length_us: f64,
        [to, from]: [u64; 2],
        delta: u32,
        count: u64,
    ) -> anyhow::Result<()> {
        let arguments = [self.calibration.rounds(length_us), to, from, delta.into(), count];
        stream.launch(&self.add, self.blocks, THREADS_PER_BLOCK, arguments)
    }

    /// How many numbers [`Kernels::add`] can change.
    pub(crate) fn threads(&self) -> u32 {
        self.blocks * THREADS_PER_BLOCK
    }

    fn launch_rounds(&self, stream: &Stream<'_>, rounds: u64) -> anyhow::Result<()> {
        stream.launch(&self.spin, self.blocks, THREADS_PER_BLOCK, [rounds, self.sink])
    }

    /// Measures two lengths, each several times back to back, and takes the fastest try: other programs may use the GPU.
    fn measure(&self, stream: &Stream<'_>) -> anyhow::Result<Calibration> {
        const SHORT_US: f64 = 60.0;
        const LONG_US: f64 = 600.0;
        const KERNELS: u32 = 20;
        const TRIES: u32 = 10;
        let once = |rounds: u64, kernels: u32| -> anyhow::Result<f64> {
            let began = Instant::now();
            for _ in 0..kernels {
                self.launch_rounds(stream, rounds)?;
            }
            stream.synchronize()?;
            Ok(began.elapsed().as_secs_f64() * 1e6)
        };
        // Brings the GPU to its full clock, and estimates the duration of a round.
        let began = Instant::now();
        let mut rounds = 1_000_u64;
        let mut rough_us = once(rounds, 1)?;
        while began.elapsed().as_millis() < 150 {
            rough_us = once(rounds, 1)?;
            if rough_us < 1_000.0 && rounds < 1 << 40 {
                rounds *= 2;
            }
        }
        let rough = Calibration { us_per_launch: 0.0, us_per_round: rough_us / rounds as f64 };
        let fastest = |rounds: u64| -> anyhow::Result<f64> {
            // The difference of two numbers of kernels cancels the fixed cost of synchronization.
            let mut best = [f64::INFINITY; 2];
            for _ in 0..TRIES {
                for (best, kernels) in best.iter_mut().zip([KERNELS / 4, KERNELS]) {
                    *best = best.min(once(rounds, kernels)?);
                }
            }
            Ok((best[1] - best[0]) / f64::from(KERNELS - KERNELS / 4))
        };
        let (short, long) = (rough.rounds(SHORT_US), rough.rounds(LONG_US));
        let (short_us, long_us) = (fastest(short)?, fastest(long)?);
        let us_per_round = (long_us - short_us) / long.saturating_sub(short).max(1) as f64;
        if !(us_per_round.is_finite() && us_per_round > 0.0) {
            return Ok(rough);
        }
        Ok(Calibration { us_per_launch: (short_us - us_per_round * short as f64).max(0.0), us_per_round })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calibration_round_trips_as_text() {
        let calibration = Calibration { us_per_launch: 2.25, us_per_round: 0.0123 };
        assert_eq!(calibration.to_string().parse(), Ok(calibration));
        for wrong in ["", "1", "1:", "1:0", "-1:2", "nan:1", "1:inf"] {
            assert!(wrong.parse::<Calibration>().unwrap_err().contains("such as"), "{wrong}");
        }
    }

    #[test]
    fn kernel_has_at_least_one_round() {
        let calibration = Calibration { us_per_launch: 2.0, us_per_round: 0.01 };
        assert_eq!(calibration.rounds(1.0), 1);
        assert_eq!(calibration.rounds(102.0), 10_000);
    }
}
