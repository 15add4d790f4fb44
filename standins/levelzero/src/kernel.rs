//! Modules, which have no content, and kernels, by name:
//!
//! ```text
//!   spin(u64 ns)   increment(u64 ns, u64 *counter)   add(u64 ns, float *to, const float *from, u64 count)
//! ```
//! Each runs for the given time and then has its effect.

use std::ffi::{CStr, c_char, c_void};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::object::{self, Handle, Object};
use crate::{Code, INVALID_ARGUMENT, INVALID_KERNEL_NAME, SUCCESS, to_code};

struct Module;

impl Object for Module {
    const TAG: u64 = u64::from_le_bytes(*b"ze modul");
}

pub(crate) unsafe extern "C" fn create_module(
    _context: *const c_void,
    _device: *const c_void,
    _description: *const c_void,
    out: *mut *const c_void,
    log: *mut *const c_void,
) -> Code {
    if !log.is_null() {
        // SAFETY: not null, so the program passes room for a handle.
        unsafe { log.write(std::ptr::null()) };
    }
    // SAFETY: the program passes room for a handle.
    to_code(unsafe { object::create(out.cast::<*const Handle<Module>>(), Module) })
}

pub(crate) unsafe extern "C" fn destroy_module(module: *const c_void) -> Code {
    // SAFETY: the program passes a handle from `create_module`.
    to_code(unsafe { object::destroy(module.cast::<Handle<Module>>()) })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    None,
    Increment,
    Add,
}

/// Every argument is a number or a pointer.
const MAX_ARGUMENTS: usize = 4;

pub(crate) struct Kernel {
    effect: Effect,
    arguments: Mutex<[u64; MAX_ARGUMENTS]>,
}

impl Object for Kernel {
    const TAG: u64 = u64::from_le_bytes(*b"ze kernl");
}

impl Kernel {
    /// The launch of the kernel with its present arguments.
    pub(crate) fn launch(&self) -> Launch {
        let arguments = *self.arguments.lock().unwrap_or_else(PoisonError::into_inner);
        Launch { effect: self.effect, arguments }
    }
}

/// A kernel with its arguments.
#[derive(Clone, Copy)]
pub(crate) struct Launch {
    effect: Effect,
    arguments: [u64; MAX_ARGUMENTS],
}

impl Launch {
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

/// `ze_kernel_desc_t`.
#[repr(C)]
pub(crate) struct Description {
    structure: u32,
    next: *const c_void,
    flags: u32,
    name: *const c_char,
}

pub(crate) unsafe extern "C" fn create(
    _module: *const c_void,
    description: *const Description,
    out: *mut *const Handle<Kernel>,
) -> Code {
    // SAFETY: the program passes a structure of this type.
    let Some(description) = (unsafe { description.as_ref() }) else { return INVALID_ARGUMENT };
    // SAFETY: the name is a C string.
    let effect = match unsafe { CStr::from_ptr(description.name) }.to_bytes() {
        b"spin" => Effect::None,
        b"increment" => Effect::Increment,
        b"add" => Effect::Add,
        _ => return INVALID_KERNEL_NAME,
    };
    // SAFETY: the program passes room for a handle.
    to_code(unsafe { object::create(out, Kernel { effect, arguments: Mutex::default() }) })
}

pub(crate) unsafe extern "C" fn destroy(kernel: *const Handle<Kernel>) -> Code {
    // SAFETY: the program passes a handle from `create`.
    to_code(unsafe { object::destroy(kernel) })
}

pub(crate) extern "C" fn set_group_size(_kernel: *const c_void, _x: u32, _y: u32, _z: u32) -> Code {
    SUCCESS
}

pub(crate) unsafe extern "C" fn set_argument(
    kernel: *const Handle<Kernel>,
    index: u32,
    size: usize,
    value: *const u64,
) -> Code {
    // SAFETY: the program passes a handle from `create`.
    to_code(unsafe { object::get(kernel) }.and_then(|kernel| {
        let mut arguments = kernel.object.arguments.lock().unwrap_or_else(PoisonError::into_inner);
        let argument = arguments.get_mut(index as usize).filter(|_| size == size_of::<u64>());
        // SAFETY: the program passes a value of that size.
        argument.map(|argument| *argument = unsafe { value.read_unaligned() }).ok_or(INVALID_ARGUMENT)
    }))
}
