//! Tasks. Each adds 1 to every number of its input tensor and writes the sums to its output tensor.

use std::ffi::c_void;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::PoisonError;
use std::time::Duration;

use xsched_sim::SimQueue;
use xsched_standin_streams::object::get;
use xsched_standin_streams::occupy;

use crate::device::{Device, DeviceHandle, Dla, ModuleHandle};
use crate::{Code, INVALID_PARAMETER, UNSUPPORTED_OPERATION, cuda, cudla};

/// `cudlaTask`.
#[repr(C)]
pub(crate) struct Description {
    module: ModuleHandle,
    outputs: *const *mut u64,
    output_count: u32,
    input_count: u32,
    inputs: *const *mut u64,
    wait_events: *const c_void,
    signal_events: *mut c_void,
}

/// A task that was submitted. The addresses are the program's, which keeps the memory until the task has completed.
struct Task {
    dla: &'static Dla,
    duration: Duration,
    output: usize,
    input: usize,
    length: usize,
}

impl Task {
    /// # Safety
    /// As the vendor's header demands.
    unsafe fn new(device: &Device, description: &Description) -> Result<Self, Code> {
        if !description.wait_events.is_null() || !description.signal_events.is_null() {
            return Err(UNSUPPORTED_OPERATION);
        }
        if description.output_count != 1 || description.input_count != 1 {
            return Err(INVALID_PARAMETER);
        }
        // SAFETY: the caller guarantees it.
        let (module, output, input) =
            unsafe { (get(description.module)?, *description.outputs, *description.inputs) };
        let length = device.length(output)?.min(device.length(input)?);
        let (output, input) = (output.expose_provenance(), input.expose_provenance());
        Ok(Self { dla: device.dla, duration: module.object.0, output, input, length })
    }

    fn run(&self, sim: &SimQueue) {
        // A device that has removed the process runs nothing.
        if !occupy(sim, self.duration) {
            return;
        }
        let input = with_exposed_provenance::<u64>(self.input);
        let output = with_exposed_provenance_mut::<u64>(self.output);
        for n in 0..self.length {
            // SAFETY: the program has registered both tensors with this length.
            unsafe { output.add(n).write_volatile(input.add(n).read_volatile() + 1) };
        }
    }
}

/// The function in the stream of a task.
unsafe extern "C" fn run_in_stream(task: *mut c_void) {
    // SAFETY: allocated by `cudlaSubmitTask`; the stream calls this once.
    let task = unsafe { Box::from_raw(task.cast::<Task>()) };
    task.run(&task.dla.tasks.lock().unwrap_or_else(PoisonError::into_inner));
}

cudla! {
    fn cudlaSubmitTask(device: DeviceHandle, tasks: *const Description, count: u32, stream: *mut c_void, _flags: u32) {
        // SAFETY: as the vendor's header demands.
        let device = unsafe { get(device) }?;
        if tasks.is_null() || (device.object.is_standalone && !stream.is_null()) {
            return Err(INVALID_PARAMETER);
        }
        if !device.object.is_standalone {
            cuda::check_stream(stream)?;
        }
        for n in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: as above.
            let task = unsafe { Task::new(&device.object, &*tasks.add(n)) }?;
            if device.object.is_standalone {
                task.dla.standalone.submit(move |sim| task.run(sim)).ok_or(UNSUPPORTED_OPERATION)?;
            } else {
                cuda::call_in_stream(stream, run_in_stream, Box::into_raw(Box::new(task)).cast())?;
            }
        }
        Ok(())
    }
}
