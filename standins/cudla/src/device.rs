//! The DLAs, device handles, modules and registered memory.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use xsched_sim::SimQueue;
use xsched_standin_streams::object::{self, Handle, Object, get};
use xsched_standin_streams::{StreamThread, open_device_at};

use crate::{
    CREATION_FAILED, Code, INVALID_ADDRESS, INVALID_DEVICE, INVALID_MODULE, INVALID_PARAMETER,
    OUT_OF_RESOURCES, UNSUPPORTED_OPERATION, cuda, cudla, write,
};

/// A DLA, as this process uses it: one task at a time.
pub(crate) struct Dla {
    pub(crate) tasks: Mutex<SimQueue>,
    /// Runs the tasks of the standalone mode.
    pub(crate) standalone: StreamThread,
}

const DLAS: usize = 2;

fn dla(number: usize) -> Result<&'static Dla, Code> {
    static OPENED: [OnceLock<Option<Dla>>; DLAS] = [const { OnceLock::new() }; DLAS];
    let open = || {
        let mut file = std::env::var_os("XSIM_DEVICE")?;
        if number > 0 {
            file.push(format!(".{number}"));
        }
        let device = open_device_at(&PathBuf::from(file))?;
        Some(Dla { tasks: Mutex::new(device.queue().ok()?), standalone: StreamThread::new(&device, "dla")? })
    };
    OPENED.get(number).ok_or(INVALID_PARAMETER)?.get_or_init(open).as_ref().ok_or(CREATION_FAILED)
}

pub(crate) struct Device {
    pub(crate) dla: &'static Dla,
    pub(crate) is_standalone: bool,
    module: Mutex<Option<Arc<Handle<Module>>>>,
    /// The size of the memory at each registered address.
    registered: Mutex<BTreeMap<usize, usize>>,
}

impl Object for Device {
    const TAG: u64 = u64::from_le_bytes(*b"dla devi");
    const INVALID: Code = INVALID_DEVICE;
}

pub(crate) type DeviceHandle = *const Handle<Device>;

impl Device {
    fn registered(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many numbers a registered tensor has.
    pub(crate) fn length(&self, tensor: *const u64) -> Result<usize, Code> {
        self.registered().get(&tensor.addr()).map(|size| size / size_of::<u64>()).ok_or(INVALID_ADDRESS)
    }
}

/// A module: its only contents is the time that a task runs, in microseconds, as 32 bits.
pub(crate) struct Module(pub(crate) Duration);

impl Object for Module {
    const TAG: u64 = u64::from_le_bytes(*b"dla modu");
    const INVALID: Code = INVALID_MODULE;
}

pub(crate) type ModuleHandle = *const Handle<Module>;

cudla! {
    fn cudlaDeviceGetCount(count: *mut u64) {
        // SAFETY: as the vendor's header demands.
        unsafe { write(count, DLAS as u64) }
    }
    fn cudlaCreateDevice(number: u64, out: *mut DeviceHandle, flags: u32) {
        let is_standalone = flags == 1;
        if !is_standalone {
            cuda::check_context()?;
        }
        let dla = dla(usize::try_from(number).map_err(|_| INVALID_PARAMETER)?)?;
        let device = Device { dla, is_standalone, module: Mutex::default(), registered: Mutex::default() };
        // SAFETY: as the vendor's header demands.
        unsafe { object::create(out, device) }
    }
    fn cudlaDestroyDevice(device: DeviceHandle) {
        // SAFETY: as the vendor's header demands.
        unsafe { object::destroy(device) }
    }
    fn cudlaMemRegister(device: DeviceHandle, memory: *mut u64, size: usize, out: *mut *mut u64, _flags: u32) {
        // SAFETY: as the vendor's header demands.
        unsafe { get(device)? }.object.registered().insert(memory.addr(), size);
        // SAFETY: as above.
        unsafe { write(out, memory) }
    }
    fn cudlaMemUnregister(device: DeviceHandle, memory: *const u64) {
        // SAFETY: as the vendor's header demands.
        unsafe { get(device)? }.object.registered().remove(&memory.addr()).map(drop).ok_or(INVALID_ADDRESS)
    }
    fn cudlaModuleLoadFromMemory(device: DeviceHandle, contents: *const u8, size: usize, out: *mut ModuleHandle, _flags: u32) {
        // SAFETY: as the vendor's header demands.
        let device = unsafe { get(device)? };
        let mut module = device.object.module.lock().unwrap_or_else(PoisonError::into_inner);
        if module.is_some() {
            return Err(UNSUPPORTED_OPERATION);
        }
        if contents.is_null() || size != size_of::<u32>() {
            return Err(OUT_OF_RESOURCES);
        }
        // SAFETY: as above.
        let us = unsafe { contents.cast::<u32>().read_unaligned() };
        let loaded = Handle::new(Module(Duration::from_micros(u64::from(us))));
        // SAFETY: as above. The device keeps the module.
        unsafe { write(out, Arc::as_ptr(&loaded)) }?;
        *module = Some(loaded);
        Ok(())
    }
}
