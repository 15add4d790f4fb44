//! The chain of layers: each layer calls the next one, and the last one the driver.
//!
//! The loader passes the next layer with the structures from which an instance or a device is created. Each layer takes its entry
//! and leaves the following one to the next layer.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::atomic::AtomicBool;
use std::sync::{PoisonError, RwLock};

use xsched_interpose::run_isolated;
use xsched_ipc::report::report_to_user;

use super::device::{Device, dispatch_table, identify};
use super::device_hook;
use super::vendor::{
    self, Chained, Code, CreateDevice, CreateInstance, Destroy, GetProcAddr, GetProperties, GetProperties2,
    Handle, INITIALIZATION_FAILED, LayerInterface, Link, LinkInfo, SUCCESS,
};
use crate::duplicate_library::is_inactive_duplicate;
use crate::loaded_libraries::LoadedLibrary;
use crate::runtime::existing_runtime;

/// The version of the loader's interface to layers that this layer implements: the first with negotiation.
const INTERFACE_VERSION: u32 = 2;

/// The instances by their dispatch tables, which their physical devices share.
static INSTANCES: RwLock<BTreeMap<usize, Instance>> = RwLock::new(BTreeMap::new());

#[derive(Clone, Copy)]
struct Instance {
    handle: Handle,
    get_proc_addr: GetProcAddr,
    destroy: Option<Destroy>,
    get_properties: Option<GetProperties>,
    get_properties_2: Option<GetProperties2>,
}

impl Instance {
    /// The instance of a physical device, or the instance itself.
    ///
    /// # Safety
    /// It is an instance or a physical device that exists, or null.
    unsafe fn of(object: Handle) -> Option<Self> {
        if object.is_none() {
            return None;
        }
        // SAFETY: guaranteed by the caller.
        let key = unsafe { dispatch_table(object) };
        INSTANCES.read().unwrap_or_else(PoisonError::into_inner).get(&key).copied()
    }

    /// An instance that was just created. The functions are looked up now: later the loader would return those of the first layer.
    ///
    /// # Safety
    /// `get_proc_addr` is the next layer's function for this instance.
    unsafe fn new(handle: Handle, get_proc_addr: GetProcAddr) -> Self {
        // SAFETY: guaranteed by the caller; the functions have the types of Vulkan's header.
        unsafe {
            let get = |name: &CStr| get_proc_addr(handle, name.as_ptr());
            Self {
                handle,
                get_proc_addr,
                destroy: as_function(get(c"vkDestroyInstance")),
                get_properties: as_function(get(c"vkGetPhysicalDeviceProperties")),
                get_properties_2: as_function(get(c"vkGetPhysicalDeviceProperties2")),
            }
        }
    }
}

/// # Safety
/// `found` is null or a function of type `F`.
unsafe fn as_function<F: Copy>(found: *mut c_void) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>(), "F is a function pointer") };
    // SAFETY: guaranteed by the caller.
    (!found.is_null()).then(|| unsafe { std::mem::transmute_copy::<*mut c_void, F>(&found) })
}

/// The function of the layer that the manifest names. On an error the loader continues without the layer.
///
/// # Safety
/// `interface` is the loader's structure, or null.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsched_vulkan_negotiate(interface: *mut LayerInterface) -> Code {
    // SAFETY: guaranteed by the caller.
    let Some(interface) = (unsafe { interface.as_mut() }) else { return INITIALIZATION_FAILED };
    let mut is_usable = false;
    run_isolated(|| is_usable = can_be_used(interface.version));
    if !is_usable {
        return INITIALIZATION_FAILED;
    }
    interface.version = INTERFACE_VERSION;
    interface.get_instance_proc_addr = Some(get_instance_proc_addr);
    interface.get_device_proc_addr = Some(get_device_proc_addr);
    interface.get_physical_device_proc_addr = None;
    SUCCESS
}

/// Whether a loader with this version of the interface can use the layer in this process.
fn can_be_used(version: u32) -> bool {
    if version < INTERFACE_VERSION {
        static IS_REPORTED: AtomicBool = AtomicBool::new(false);
        report_to_user(
            &IS_REPORTED,
            format_args!(
                "Vulkan runs unscheduled: its loader has version {version} of the interface to layers, and version \
                 {INTERFACE_VERSION} is needed: install a newer libvulkan.so.1"
            ),
        );
        return false;
    }
    // SAFETY: reads a number that the kernel passed to the process.
    if is_inactive_duplicate() || unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        // A program with more rights than its user must not follow the variables of that user.
        return false;
    }
    // The loader closes its layers with the last instance. This library has threads and must stay loaded.
    if let Some(library) = LoadedLibrary::containing(can_be_used as *const c_void) {
        library.keep_loaded();
    }
    true
}

/// Takes the entry of this layer from the chain in `info`.
///
/// # Safety
/// `info` is null or the structure with which the loader calls the layer.
unsafe fn take_link(info: *const Chained, kind: i32) -> Option<Link> {
    // SAFETY: guaranteed by the caller. The loader allows layers to write to its structure.
    unsafe {
        let mut links = vendor::in_chain(info, kind).map(|at| at.cast::<LinkInfo>().cast_mut());
        let info = links.find(|info| (**info).function == 0 && !(**info).link.is_null())?;
        let link = (*info).link.read();
        (*info).link = link.next;
        Some(link)
    }
}

unsafe extern "C" fn create_instance(
    info: *const Chained,
    allocator: *const c_void,
    instance: *mut Handle,
) -> Code {
    // SAFETY: the loader's structure, whose functions are the next layer's. The arguments are the caller's own.
    unsafe {
        let Some(link) = take_link(info, vendor::LOADER_INSTANCE_CREATE_INFO) else {
            return INITIALIZATION_FAILED;
        };
        let get_proc_addr = link.get_instance_proc_addr;
        let next = as_function::<CreateInstance>(get_proc_addr(Handle::NONE, c"vkCreateInstance".as_ptr()));
        let Some(next) = next else { return INITIALIZATION_FAILED };
        let code = next(info, allocator, instance);
        if code == SUCCESS {
            let handle = *instance;
            run_isolated(|| {
                let new = Instance::new(handle, get_proc_addr);
                let mut instances = INSTANCES.write().unwrap_or_else(PoisonError::into_inner);
                instances.insert(dispatch_table(handle), new);
            });
        }
        code
    }
}

unsafe extern "C" fn destroy_instance(instance: Handle, allocator: *const c_void) {
    // SAFETY: the program passes an instance that exists, or null.
    unsafe {
        let Some(known) = Instance::of(instance) else { return };
        INSTANCES.write().unwrap_or_else(PoisonError::into_inner).remove(&dispatch_table(instance));
        if let Some(next) = known.destroy {
            next(instance, allocator);
        }
    }
}

unsafe extern "C" fn create_device(
    physical: Handle,
    info: *const Chained,
    allocator: *const c_void,
    device: *mut Handle,
) -> Code {
    // SAFETY: as in `create_instance`.
    unsafe {
        let link = take_link(info, vendor::LOADER_DEVICE_CREATE_INFO);
        let (Some(link), Some(instance)) = (link, Instance::of(physical)) else {
            return INITIALIZATION_FAILED;
        };
        let next = (link.get_instance_proc_addr)(instance.handle, c"vkCreateDevice".as_ptr());
        let (Some(next), Some(get_device)) = (as_function::<CreateDevice>(next), link.get_device_proc_addr)
        else {
            return INITIALIZATION_FAILED;
        };
        let code = next(physical, info, allocator, device);
        if code == SUCCESS {
            run_isolated(|| {
                let identity = identify(physical, instance.get_properties, instance.get_properties_2);
                Device::add(*device, identity, get_device);
            });
        }
        code
    }
}

unsafe extern "C" fn destroy_device(handle: Handle, allocator: *const c_void) {
    // SAFETY: the program passes a device that exists, or null.
    let Some(device) = (unsafe { Device::of(handle) }) else { return };
    run_isolated(|| {
        if !device.queues().is_empty() {
            // The program's own work has completed; a marker behind it may not have.
            if let Some(wait) = device.functions.vkDeviceWaitIdle {
                // SAFETY: the program no longer uses the device.
                unsafe { wait(handle) };
            }
            if let Some(runtime) = existing_runtime() {
                runtime.untrack_all_owned_by(handle.addr());
            }
        }
        // SAFETY: the device exists, and its queues were just untracked.
        unsafe { device.remove() };
    });
    if let Some(next) = device.functions.vkDestroyDevice {
        // SAFETY: the caller's own arguments.
        unsafe { next(handle, allocator) };
    }
}

/// `vkGetInstanceProcAddr` of the layer.
unsafe extern "C" fn get_instance_proc_addr(instance: Handle, name: *const c_char) -> *mut c_void {
    if name.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the caller passes a C string.
    let wanted = unsafe { CStr::from_ptr(name) };
    match wanted.to_bytes() {
        b"vkGetInstanceProcAddr" => return get_instance_proc_addr as *mut c_void,
        b"vkCreateInstance" => return create_instance as *mut c_void,
        b"vkDestroyInstance" => return destroy_instance as *mut c_void,
        b"vkCreateDevice" => return create_device as *mut c_void,
        _ => {}
    }
    // SAFETY: the caller passes an instance, or null.
    let Some(known) = (unsafe { Instance::of(instance) }) else { return ptr::null_mut() };
    // SAFETY: the caller's own arguments.
    hook_for(wanted, unsafe { (known.get_proc_addr)(instance, name) })
}

/// `vkGetDeviceProcAddr` of the layer.
unsafe extern "C" fn get_device_proc_addr(handle: Handle, name: *const c_char) -> *mut c_void {
    // SAFETY: the caller passes a device, or null.
    let Some(device) = (unsafe { Device::of(handle) }).filter(|_| !name.is_null()) else {
        return ptr::null_mut();
    };
    // SAFETY: the caller's own arguments.
    unsafe { hook_for(CStr::from_ptr(name), (device.get_proc_addr)(handle, name)) }
}

/// The hook for a function for devices, if it is hooked and the next layer has it; otherwise the next layer's function.
fn hook_for(name: &CStr, found: *mut c_void) -> *mut c_void {
    if found.is_null() {
        return found;
    }
    match name.to_bytes() {
        b"vkGetDeviceProcAddr" => get_device_proc_addr as *mut c_void,
        b"vkDestroyDevice" => destroy_device as *mut c_void,
        _ => device_hook(name).unwrap_or(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loader_without_negotiation_gets_an_error_and_no_functions() {
        // SAFETY: all members may be zero.
        let mut interface = unsafe { std::mem::zeroed::<LayerInterface>() };
        for version in [0, 1] {
            interface.version = version;
            // SAFETY: the loader's structure.
            assert_eq!(unsafe { xsched_vulkan_negotiate(&raw mut interface) }, INITIALIZATION_FAILED);
            assert!(interface.get_instance_proc_addr.is_none() && interface.version == version);
        }
        // SAFETY: null is allowed.
        assert_eq!(unsafe { xsched_vulkan_negotiate(ptr::null_mut()) }, INITIALIZATION_FAILED);
        interface.version = 7;
        // SAFETY: as above.
        assert_eq!(unsafe { xsched_vulkan_negotiate(&raw mut interface) }, SUCCESS);
        assert!(interface.get_instance_proc_addr.is_some() && interface.version == INTERFACE_VERSION);
    }

    #[test]
    fn structures_without_an_entry_of_the_loader_are_rejected() {
        let info = Chained { kind: 1, next: ptr::null() };
        let mut created = Handle::NONE;
        // SAFETY: a chain of one structure; `created` has room for a handle.
        unsafe {
            let code = create_instance(&raw const info, ptr::null(), &raw mut created);
            assert_eq!(code, INITIALIZATION_FAILED);
            let code = create_device(Handle::NONE, &raw const info, ptr::null(), &raw mut created);
            assert_eq!(code, INITIALIZATION_FAILED);
            assert!(get_instance_proc_addr(Handle::NONE, c"vkQueueSubmit".as_ptr()).is_null());
            assert!(get_device_proc_addr(Handle::NONE, c"vkQueueSubmit".as_ptr()).is_null());
        }
        assert!(created.is_none());
    }
}
