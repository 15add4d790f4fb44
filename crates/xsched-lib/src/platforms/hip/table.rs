//! The runtime's own table of functions. On first use it hands it to a tool, through `rocprofiler-register`, which looks
//! for one by the two names exported here. Everything the runtime exports goes through the table, however a program
//! came by it: so this is the best way there is. Runtimes older than version 6.2, and those of some distributions, lack it.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::Ordering;

use xsched_interpose::run_isolated;
use xsched_ipc::report::{Severity, report};

use super::HOOKS;
use super::copies::{self, Library, Way};
use crate::loader::next_definition;

/// No table of functions has more bytes than this.
const LARGEST: usize = 1 << 20;

/// Says that there is a tool. What it could configure is of no interest to us.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rocprofiler_configure(
    _version: u32,
    _runtime: *const c_char,
    _priority: u32,
    _client: *mut c_void,
) -> *mut c_void {
    std::ptr::null_mut()
}

type SetTable = unsafe extern "C" fn(*const c_char, u64, u64, *mut *mut c_void, u64) -> c_int;

/// Takes a table. A profiler that wants it too gets it first: what it puts there is real to us.
///
/// # Safety
/// `tables` points at `count` tables, and `name` is a C string.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rocprofiler_set_api_table(
    name: *const c_char,
    version: u64,
    instance: u64,
    tables: *mut *mut c_void,
    count: u64,
) -> c_int {
    // SAFETY: by the caller's word.
    let is_of = |runtime: &CStr| !name.is_null() && unsafe { CStr::from_ptr(name) } == runtime;
    let is_there = count > 0 && !tables.is_null();
    let is_runtime = is_there && is_of(c"hip");
    // SAFETY: as above, and there is one at least.
    let table = is_runtime.then(|| unsafe { Table::at((*tables).cast()) }).flatten();
    // Whose it is can be told only before others have put their own functions there.
    let library = table.as_ref().and_then(Table::owner);
    let mut answer = 0;
    if let Some(profiler) = profiler() {
        // SAFETY: the arguments are those that were meant for it.
        answer = unsafe { profiler(name, version, instance, tables, count) };
    }
    if is_there && is_of(c"hsa") {
        // SAFETY: as above: the first is the list of all tables of ROCr.
        unsafe { super::hsa::take(*tables) };
    }
    run_isolated(|| match table.zip(library) {
        Some((table, library)) => table.put_hooks(&library),
        None if is_runtime => {
            let what = "a HIP runtime's table of functions is not as expected and left alone";
            report(
                Severity::Warning,
                format_args!("{what}: what is found by name is scheduled all the same"),
            );
        }
        None => {}
    });
    answer
}

/// The function of this name of a profiler in this process. If one is wanted but not there, it would have been loaded in
/// our place: so we load it.
fn profiler() -> Option<SetTable> {
    const NAME: &CStr = c"rocprofiler_set_api_table";
    let mut found = next_definition(NAME);
    if found.is_null() && std::env::var_os("ROCP_TOOL_LIBRARIES").is_some_and(|list| !list.is_empty()) {
        let how = libc::RTLD_LAZY | libc::RTLD_GLOBAL;
        // SAFETY: a C string; this is a profiler's library, not a runtime's.
        let library = unsafe { libc::dlopen(c"librocprofiler-sdk.so".as_ptr(), how) };
        if !library.is_null() {
            // SAFETY: the handle was just given to us; the name is a C string.
            found = unsafe { crate::loader::real_dlsym()(library, NAME.as_ptr()) };
        }
    }
    let ours = found.cast_const() == rocprofiler_set_api_table as *const c_void;
    // SAFETY: the function of this name has this type.
    (!found.is_null() && !ours).then(|| unsafe { std::mem::transmute::<*mut c_void, SetTable>(found) })
}

/// `{ size_t size; function slots[]; }`, which only ever grows at its end.
struct Table {
    first: *mut *mut c_void,
    slots: usize,
}

impl Table {
    /// # Safety
    /// Null, or a table as above.
    unsafe fn at(address: *mut usize) -> Option<Self> {
        if address.is_null() {
            return None;
        }
        // SAFETY: by the caller's word it begins with its size.
        let size = unsafe { *address };
        let sane = size.is_multiple_of(8) && (16..=LARGEST).contains(&size);
        // SAFETY: the slots lie behind the size.
        sane.then(|| Self { first: unsafe { address.add(1) }.cast(), slots: size / 8 - 1 })
    }

    fn slot(&self, number: usize) -> Option<*mut *mut c_void> {
        // SAFETY: the table has that many slots.
        (number < self.slots).then(|| unsafe { self.first.add(number) })
    }

    /// The functions of ours that it has.
    fn hooks(&self) -> impl Iterator<Item = (&'static copies::Hook, *mut *mut c_void)> {
        let with_slot = |hook: &&'static copies::Hook| Some((*hook, self.slot(hook.slot?)?));
        // SAFETY: slots of the table hold functions or null.
        HOOKS.iter().filter_map(with_slot).filter(|(_, slot)| unsafe { !(**slot).is_null() })
    }

    /// The runtime it belongs to.
    fn owner(&self) -> Option<Library> {
        let (_, slot) = self.hooks().next()?;
        // SAFETY: as above.
        Library::of(unsafe { *slot })
    }

    fn put_hooks(&self, library: &Library) {
        let Some(copy) = copies::note(library, Way::Table) else { return };
        let mut put = 0;
        for (hook, slot) in self.hooks() {
            // SAFETY: the runtime lets its table be changed during this call.
            let real = unsafe { *slot };
            if hook.hooked.contains(&real.cast_const()) {
                continue;
            }
            // Release: pairs with the Acquire in the hook.
            hook.real[copy].store(real, Ordering::Release);
            // SAFETY: as above.
            unsafe { *slot = hook.hooked[copy].cast_mut() };
            put += 1;
        }
        let all = HOOKS.iter().filter(|hook| hook.slot.is_some()).count();
        let what = format_args!(
            "a HIP runtime handed us its table: {put} of {all} functions are in its {} slots",
            self.slots
        );
        report(Severity::Info, what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_believed_within_its_size_only() {
        for (size, slots) in [(0, None), (8, None), (20, None), (usize::MAX, None), (24, Some(2))] {
            let mut memory = [size, 0, 0];
            // SAFETY: it begins with its size, and no slot is looked at.
            let table = unsafe { Table::at(memory.as_mut_ptr()) };
            assert_eq!(table.map(|table| table.slots), slots, "{size}");
        }
        // SAFETY: null is allowed.
        assert!(unsafe { Table::at(std::ptr::null_mut()) }.is_none());
        let mut memory = [24, 0, 0];
        // SAFETY: as above.
        let table = unsafe { Table::at(memory.as_mut_ptr()) }.unwrap();
        assert!(table.slot(1).is_some() && table.slot(2).is_none());
    }
}
