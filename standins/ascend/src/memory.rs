//! Memory: all of it is the host's.

use std::ffi::c_void;

use crate::{INVALID_PARAMETER, OUT_OF_MEMORY, acl, write};

unsafe extern "C" {
    fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void;
    #[link_name = "free"]
    fn c_free(memory: *mut c_void);
}

const PAGE: usize = 4096;

acl! {
    fn aclrtMalloc(out: *mut *mut c_void, size: usize, _policy: i32) {
        // SAFETY: the size is a multiple of the alignment.
        let memory = unsafe { aligned_alloc(PAGE, size.max(1).next_multiple_of(PAGE)) };
        // SAFETY: as the vendor's headers demand.
        if memory.is_null() { Err(OUT_OF_MEMORY) } else { unsafe { write(out, memory) } }
    }
    fn aclrtFree(memory: *mut c_void) {
        // SAFETY: the program passes memory of `aclrtMalloc`.
        unsafe { c_free(memory) };
        Ok(())
    }
    fn aclrtMemcpy(to: *mut u8, room: usize, from: *const u8, size: usize, _kind: i32) {
        if size > room {
            return Err(INVALID_PARAMETER);
        }
        // SAFETY: as the vendor's headers demand.
        unsafe { to.copy_from(from, size) };
        Ok(())
    }
}
