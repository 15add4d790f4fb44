//! Kernels, by name, and models.
//!
//! ```text
//!   spin(u64 ns)   increment(u64 ns, u64 *counter)   add(u64 ns, float *to, const float *from, u64 count)
//! ```
//! Each runs for the given time and then has its effect. The arguments of a launch are those numbers in order. The number of a model is
//! the time that it runs, in microseconds, and its output is a counter that it increments.

use std::ffi::{CStr, c_char, c_void};
use std::time::Duration;

use xsched_standin_streams::object::{Handle, Object, create, get};

use crate::stream::{Command, StreamHandle, find};
use crate::{Code, INVALID_PARAMETER, acl, context, write};

#[derive(Clone, Copy)]
pub(crate) enum Effect {
    None,
    Increment,
    Add,
}

/// Every argument is a number or a pointer.
const MAX_ARGUMENTS: usize = 4;

pub(crate) struct Kernel(Effect);

impl Object for Kernel {
    const TAG: u64 = u64::from_le_bytes(*b"acl kern");
    const INVALID: Code = INVALID_PARAMETER;
}

/// A kernel with its arguments.
#[derive(Clone, Copy)]
pub(crate) struct Launch {
    effect: Effect,
    arguments: [u64; MAX_ARGUMENTS],
}

impl Launch {
    fn model(us: u32, output: *mut c_void) -> Self {
        let counter = output.expose_provenance() as u64;
        Self { effect: Effect::Increment, arguments: [u64::from(us) * 1000, counter, 0, 0] }
    }

    pub(crate) fn duration(&self) -> Duration {
        Duration::from_nanos(self.arguments[0])
    }

    pub(crate) fn apply(&self) {
        let pointer = |n: usize| usize::try_from(self.arguments[n]).unwrap_or(0);
        match self.effect {
            Effect::None => {}
            Effect::Increment => {
                let counter = std::ptr::with_exposed_provenance_mut::<u64>(pointer(1));
                // SAFETY: the program passes a counter, which it may read at the same time.
                unsafe { std::sync::atomic::AtomicU64::from_ptr(counter) }
                    .fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
            Effect::Add => {
                let (to, from) = (
                    std::ptr::with_exposed_provenance_mut::<f32>(pointer(1)),
                    std::ptr::with_exposed_provenance::<f32>(pointer(2)),
                );
                for n in 0..pointer(3) {
                    // SAFETY: the program passes two arrays of that length.
                    unsafe { *to.add(n) += *from.add(n) };
                }
            }
        }
    }
}

acl! {
    fn aclrtBinaryLoadFromFile(_path: *const c_char, _options: *const c_void, binary: *mut *const c_void) {
        context::current()?;
        // SAFETY: as the vendor's headers demand. A binary has no content.
        unsafe { write(binary, std::ptr::null()) }
    }
    fn aclrtBinaryGetFunction(_binary: *const c_void, name: *const c_char, kernel: *mut *const Handle<Kernel>) {
        if name.is_null() {
            return Err(INVALID_PARAMETER);
        }
        // SAFETY: as the vendor's headers demand.
        let effect = match unsafe { CStr::from_ptr(name) }.to_bytes() {
            b"spin" => Effect::None,
            b"increment" => Effect::Increment,
            b"add" => Effect::Add,
            _ => return Err(INVALID_PARAMETER),
        };
        // SAFETY: as the vendor's headers demand.
        unsafe { create(kernel, Kernel(effect)) }
    }
    fn aclrtLaunchKernel(kernel: *const Handle<Kernel>, _blocks: u32, arguments: *const u64, size: usize, stream: StreamHandle) {
        // SAFETY: as the vendor's headers demand.
        let (kernel, stream) = unsafe { (get(kernel)?, find(stream)?) };
        let count = size / size_of::<u64>();
        if arguments.is_null() || count > MAX_ARGUMENTS {
            return Err(INVALID_PARAMETER);
        }
        let mut launch = Launch { effect: kernel.object.0, arguments: [0; MAX_ARGUMENTS] };
        for (n, argument) in launch.arguments.iter_mut().enumerate().take(count) {
            // SAFETY: as the vendor's headers demand.
            *argument = unsafe { arguments.add(n).read_unaligned() };
        }
        stream.object.submit(Command::Kernel(launch))
    }
    fn aclmdlExecuteAsync(model: u32, _input: *const c_void, output: *mut c_void, stream: StreamHandle) {
        // SAFETY: as the vendor's headers demand.
        unsafe { find(stream) }?.object.submit(Command::Kernel(Launch::model(model, output)))
    }
    fn aclmdlExecute(model: u32, _input: *const c_void, output: *mut c_void) {
        let context = context::current()?;
        let stream = context::Context::default_stream(&context)?;
        stream.object.submit(Command::Kernel(Launch::model(model, output)))?;
        stream.object.wait(-1)
    }
}
