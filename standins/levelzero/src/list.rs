//! Command lists. A regular list records commands, and an immediate list runs them at once.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use crate::event::Event;
use crate::kernel::{Kernel, Launch};
use crate::object::{self, Handle, Object};
use crate::queue::{Description, Queue};
use crate::{Code, INVALID_ARGUMENT, SUCCESS, to_code};

/// What a command does.
#[derive(Clone)]
pub(crate) enum Action {
    Nothing,
    Kernel(Launch),
    Copy { to: usize, from: usize, size: usize },
    Fill { to: usize, pattern: Vec<u8>, size: usize },
    Reset(Arc<Handle<Event>>),
}

/// A command with the events that it waits for and the one that it signals.
#[derive(Clone)]
pub(crate) struct Command {
    pub(crate) waits: Vec<Arc<Handle<Event>>>,
    pub(crate) action: Action,
    pub(crate) signal: Option<Arc<Handle<Event>>>,
}

pub(crate) enum List {
    Regular(Mutex<Vec<Command>>),
    Immediate(Queue),
}

impl Object for List {
    const TAG: u64 = u64::from_le_bytes(*b"ze clist");
}

impl List {
    /// The commands of a regular list.
    pub(crate) fn recorded(&self) -> Result<Vec<Command>, Code> {
        match self {
            Self::Regular(commands) => Ok(commands.lock().unwrap_or_else(PoisonError::into_inner).clone()),
            Self::Immediate(_) => Err(INVALID_ARGUMENT),
        }
    }
}

type ListHandle = *const Handle<List>;
type EventHandle = *const Handle<Event>;

pub(crate) unsafe extern "C" fn create(
    _context: *const c_void,
    _device: *const c_void,
    _description: *const c_void,
    out: *mut ListHandle,
) -> Code {
    // SAFETY: the program passes room for a handle.
    to_code(unsafe { object::create(out, List::Regular(Mutex::default())) })
}

pub(crate) unsafe extern "C" fn create_immediate(
    _context: *const c_void,
    _device: *const c_void,
    description: *const Description,
    out: *mut ListHandle,
) -> Code {
    // SAFETY: the program passes a description of a queue, and room for a handle.
    to_code(unsafe { Queue::new(description).and_then(|queue| object::create(out, List::Immediate(queue))) })
}

pub(crate) unsafe extern "C" fn destroy(list: ListHandle) -> Code {
    // SAFETY: the program passes a handle from `create`.
    to_code(unsafe { object::destroy(list) })
}

pub(crate) extern "C" fn close(_list: ListHandle) -> Code {
    SUCCESS
}

pub(crate) unsafe extern "C" fn reset(list: ListHandle) -> Code {
    // SAFETY: as above.
    to_code(unsafe { object::get(list) }.map(|list| {
        if let List::Regular(commands) = &list.object {
            commands.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }))
}

/// Appends a command.
unsafe fn append(
    list: ListHandle,
    action: Action,
    signal: EventHandle,
    count: u32,
    waits: *const EventHandle,
) -> Code {
    // SAFETY: the program passes handles from the functions that create them, and a list of that length.
    let arguments = unsafe { object::get(list).and_then(|list| Ok((list, object::get_all(count, waits)?))) };
    to_code(arguments.and_then(|(list, waits)| {
        // SAFETY: as above.
        let signal = if signal.is_null() { None } else { Some(unsafe { object::get(signal) }?) };
        let command = Command { waits, action, signal };
        match &list.object {
            List::Regular(commands) => {
                commands.lock().unwrap_or_else(PoisonError::into_inner).push(command);
                Ok(())
            }
            List::Immediate(queue) => queue.submit(vec![command]),
        }
    }))
}

pub(crate) unsafe extern "C" fn append_barrier(
    list: ListHandle,
    signal: EventHandle,
    count: u32,
    waits: *const EventHandle,
) -> Code {
    // SAFETY: the caller's own arguments.
    unsafe { append(list, Action::Nothing, signal, count, waits) }
}

pub(crate) unsafe extern "C" fn append_copy(
    list: ListHandle,
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    signal: EventHandle,
    count: u32,
    waits: *const EventHandle,
) -> Code {
    let action = Action::Copy { to: to.expose_provenance(), from: from.expose_provenance(), size };
    // SAFETY: the caller's own arguments.
    unsafe { append(list, action, signal, count, waits) }
}

#[allow(clippy::too_many_arguments, reason = "the vendor's interface")]
pub(crate) unsafe extern "C" fn append_fill(
    list: ListHandle,
    to: *mut c_void,
    pattern: *const u8,
    length: usize,
    size: usize,
    signal: EventHandle,
    count: u32,
    waits: *const EventHandle,
) -> Code {
    if pattern.is_null() || length == 0 {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the program passes a pattern of that length.
    let pattern = unsafe { std::slice::from_raw_parts(pattern, length) }.to_vec();
    // SAFETY: the caller's own arguments.
    unsafe { append(list, Action::Fill { to: to.expose_provenance(), pattern, size }, signal, count, waits) }
}

pub(crate) unsafe extern "C" fn append_kernel(
    list: ListHandle,
    kernel: *const Handle<Kernel>,
    _groups: *const c_void,
    signal: EventHandle,
    count: u32,
    waits: *const EventHandle,
) -> Code {
    // SAFETY: the program passes a handle of a kernel.
    match unsafe { object::get(kernel) } {
        // SAFETY: the caller's own arguments.
        Ok(kernel) => unsafe { append(list, Action::Kernel(kernel.object.launch()), signal, count, waits) },
        Err(code) => code,
    }
}

pub(crate) unsafe extern "C" fn append_signal(list: ListHandle, event: EventHandle) -> Code {
    // SAFETY: the caller's own arguments.
    unsafe { append(list, Action::Nothing, event, 0, std::ptr::null()) }
}

pub(crate) unsafe extern "C" fn append_wait(
    list: ListHandle,
    count: u32,
    events: *const EventHandle,
) -> Code {
    // SAFETY: the caller's own arguments.
    unsafe { append(list, Action::Nothing, std::ptr::null(), count, events) }
}

pub(crate) unsafe extern "C" fn append_reset(list: ListHandle, event: EventHandle) -> Code {
    // SAFETY: the program passes a handle of an event.
    match unsafe { object::get(event) } {
        // SAFETY: the caller's own arguments.
        Ok(event) => unsafe { append(list, Action::Reset(event), std::ptr::null(), 0, std::ptr::null()) },
        Err(code) => code,
    }
}
