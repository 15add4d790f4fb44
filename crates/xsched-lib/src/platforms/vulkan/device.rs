//! A logical device of the program, and the functions of the next layer or the driver for it.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use xsched_core::{DeviceId, DeviceKind};

use super::Functions;
use super::vendor::{
    self, Chained, GetProcAddr, GetProperties, GetProperties2, Handle, Object, PciBusInfo, Properties,
    Properties2,
};

/// Defines the hooks, and [`Functions`] with the next layer's functions.
///
/// A hook calls its handler with `real`, which calls the next layer's function with the same arguments, the device, and the
/// arguments. The first argument is a device or a queue.
macro_rules! device_hooks {
    (
        $( fn $name:ident($first:ident: Handle $(, $argument:ident: $kind:ty)*) -> Code = $handler:expr; )*
        functions of the driver { $( fn $other:ident($($other_kind:ty),*) -> $result:ty; )* }
    ) => {
        /// The next layer's functions for a device. None if the driver lacks a function.
        #[allow(non_snake_case, reason = "Vulkan's names")]
        pub(crate) struct Functions {
            $( pub(crate) $name: Option<unsafe extern "C" fn(Handle $(, $kind)*) -> Code>, )*
            $( pub(crate) $other: Option<unsafe extern "C" fn($($other_kind),*) -> $result>, )*
        }

        impl Functions {
            /// # Safety
            /// `get` returns the function of this name, or null.
            pub(crate) unsafe fn load(get: impl Fn(&std::ffi::CStr) -> *mut c_void) -> Self {
                // SAFETY: the list has the types of Vulkan's header, and null is none.
                unsafe { Self {
                    $( $name: std::mem::transmute::<*mut c_void, Option<_>>(get(crate::hooks::c_name(concat!(stringify!($name), "\0")))), )*
                    $( $other: std::mem::transmute::<*mut c_void, Option<_>>(get(crate::hooks::c_name(concat!(stringify!($other), "\0")))), )*
                } }
            }
        }

        #[allow(non_snake_case, reason = "Vulkan's names")]
        mod hooked {
            use super::*;
            $(
                pub(super) unsafe extern "C" fn $name($first: Handle $(, $argument: $kind)*) -> Code {
                    // SAFETY: the program passes a device or a queue.
                    let Some(device) = (unsafe { Device::of($first) }) else { return vendor::INITIALIZATION_FAILED };
                    let Some(real) = device.functions.$name else { return vendor::INITIALIZATION_FAILED };
                    // SAFETY: the caller's own arguments.
                    let real = || unsafe { real($first $(, $argument)*) };
                    #[allow(clippy::redundant_closure_call, reason = "the handler may be a closure")]
                    ($handler)(real, &*device, $first $(, $argument)*)
                }
            )*
        }

        /// The hook of a function for devices.
        pub(crate) fn device_hook(name: &std::ffi::CStr) -> Option<*mut c_void> {
            $( if name.to_bytes() == stringify!($name).as_bytes() { return Some(hooked::$name as *mut c_void); } )*
            None
        }
    };
}
pub(crate) use device_hooks;

/// The devices by their dispatch tables, which their queues share.
static DEVICES: RwLock<BTreeMap<usize, Arc<Device>>> = RwLock::new(BTreeMap::new());

/// See the head of this file.
pub(crate) struct Device {
    pub(crate) handle: Handle,
    pub(crate) id: DeviceId,
    pub(crate) name: String,
    pub(crate) get_proc_addr: GetProcAddr,
    pub(crate) functions: Functions,
    /// The keys of the tracked queues.
    queues: Mutex<Vec<usize>>,
    /// Fences that are not in use.
    fences: Mutex<Vec<Object>>,
    has_host_events: AtomicBool,
}

/// The dispatch table of an instance, a physical device, a device or a queue: the loader stores it in the object's first word.
///
/// # Safety
/// The object exists.
pub(crate) unsafe fn dispatch_table(object: Handle) -> usize {
    // SAFETY: guaranteed by the caller.
    unsafe { ptr::with_exposed_provenance::<usize>(object.addr()).read() }
}

impl Device {
    /// The device of a queue, or the device itself.
    ///
    /// # Safety
    /// It is a device or a queue that exists, or null.
    pub(crate) unsafe fn of(object: Handle) -> Option<Arc<Self>> {
        if object.is_none() {
            return None;
        }
        // SAFETY: guaranteed by the caller.
        let key = unsafe { dispatch_table(object) };
        DEVICES.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
    }

    /// Adds a device that was just created.
    ///
    /// # Safety
    /// `get_proc_addr` is the next layer's function for this device, and `identity` describes the device.
    pub(crate) unsafe fn add(handle: Handle, identity: (DeviceId, String), get_proc_addr: GetProcAddr) {
        // SAFETY: guaranteed by the caller.
        let functions = unsafe { Functions::load(|name| get_proc_addr(handle, name.as_ptr())) };
        let (id, name) = identity;
        let device = Self {
            handle,
            id,
            name,
            get_proc_addr,
            functions,
            queues: Mutex::default(),
            fences: Mutex::default(),
            has_host_events: AtomicBool::new(false),
        };
        // SAFETY: the device exists.
        let key = unsafe { dispatch_table(handle) };
        DEVICES.write().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::new(device));
    }

    /// Removes a device that is about to be destroyed, and destroys its fences.
    ///
    /// # Safety
    /// The device exists, and no queue of it is tracked.
    pub(crate) unsafe fn remove(&self) {
        // SAFETY: guaranteed by the caller.
        let key = unsafe { dispatch_table(self.handle) };
        DEVICES.write().unwrap_or_else(PoisonError::into_inner).remove(&key);
        if let Some(destroy) = self.functions.vkDestroyFence {
            for fence in lock(&self.fences).drain(..) {
                // SAFETY: a fence of this device that is not in use.
                unsafe { destroy(self.handle, fence, ptr::null()) };
            }
        }
    }

    /// The keys of the tracked queues.
    pub(crate) fn queues(&self) -> MutexGuard<'_, Vec<usize>> {
        lock(&self.queues)
    }

    /// A queue is tracked from now on.
    pub(crate) fn add_queue(&self, key: usize) {
        let mut queues = lock(&self.queues);
        if !queues.contains(&key) {
            queues.push(key);
        }
    }

    /// A fence that is not in use and not signalled.
    pub(crate) fn take_fence(&self) -> Result<Object, String> {
        if let Some(fence) = lock(&self.fences).pop() {
            return Ok(fence);
        }
        let create = self.functions.vkCreateFence.ok_or("the driver has no fences")?;
        let head = Chained { kind: vendor::FENCE_CREATE_INFO, next: ptr::null() };
        let (info, mut fence) = (vendor::FenceCreateInfo { head, flags: 0 }, 0);
        // SAFETY: the device exists while its queues are tracked; `fence` has room for a handle.
        match unsafe { create(self.handle, &raw const info, ptr::null(), &raw mut fence) } {
            vendor::SUCCESS => Ok(fence),
            code => Err(format!("error {code}")),
        }
    }

    /// Takes back a fence that the device no longer uses.
    pub(crate) fn return_fence(&self, fence: Object) {
        if let Some(reset) = self.functions.vkResetFences {
            // SAFETY: the device exists while its queues are tracked, and no other thread uses the fence.
            unsafe { reset(self.handle, 1, &raw const fence) };
        }
        lock(&self.fences).push(fence);
    }

    /// Whether the program has events that it can set itself, for which a queue may wait.
    pub(crate) fn has_host_events(&self) -> bool {
        // Relaxed: the program synchronizes the creation of an event with its use.
        self.has_host_events.load(Ordering::Relaxed)
    }

    pub(crate) fn set_has_host_events(&self) {
        self.has_host_events.store(true, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The id and the name of a physical device. Its PCI address identifies it, so that it is the same device to CUDA and HIP;
/// otherwise its name does.
///
/// # Safety
/// The functions are those of the device's instance, and the device exists.
pub(crate) unsafe fn identify(
    device: Handle,
    get: Option<GetProperties>,
    get_2: Option<GetProperties2>,
) -> (DeviceId, String) {
    let head = |kind, next| Chained { kind, next };
    // A driver that does not know the structure leaves it unchanged.
    let mut pci = PciBusInfo { head: head(vendor::PCI_BUS_INFO, ptr::null()), address: [u32::MAX; 4] };
    let next = (&raw mut pci).cast::<Chained>().cast_const();
    let mut properties =
        Properties2 { head: head(vendor::PROPERTIES_2, next), properties: Properties::EMPTY };
    // SAFETY: guaranteed by the caller; the structures have the layout of Vulkan's.
    unsafe {
        match (get_2, get) {
            (Some(get_2), _) => get_2(device, &raw mut properties),
            (None, Some(get)) => get(device, &raw mut properties.properties),
            (None, None) => {}
        }
    }
    let Properties { kind, name, .. } = &properties.properties;
    // SAFETY: Vulkan ends the name with a zero, and the array is initialized with zeros.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    let kind = match *kind {
        vendor::CPU => DeviceKind::Cpu,
        kind if vendor::GPUS.contains(&kind) => DeviceKind::Gpu,
        _ => DeviceKind::Unknown,
    };
    let [domain, bus, slot, function] = pci.address;
    let id = if bus == u32::MAX {
        DeviceId::named(kind, &name)
    } else {
        DeviceId::new(kind, domain << 16 | (bus & 0xff) << 8 | (slot & 0x1f) << 3 | (function & 7))
    };
    (id, name)
}
