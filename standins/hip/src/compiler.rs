//! `hiprtc`, the compiler for kernels, which is a part of AMD's runtimes before version 7. Every module has every kernel, so it compiles
//! nothing: a program and its code are one byte.

use std::ffi::{c_char, c_int, c_void};

use crate::device::write_out;
use crate::error::{Code, to_code};

static PROGRAM: u8 = 0;

pub(crate) extern "C" fn create(
    program: *mut *const c_void,
    _source: *const c_char,
    _name: *const c_char,
    _headers: c_int,
    _texts: *const *const c_char,
    _includes: *const *const c_char,
) -> Code {
    to_code(write_out(program, (&raw const PROGRAM).cast()))
}

pub(crate) extern "C" fn compile(
    _program: *const c_void,
    _options: c_int,
    _list: *const *const c_char,
) -> Code {
    to_code(Ok(()))
}

pub(crate) extern "C" fn code_size(_program: *const c_void, size: *mut usize) -> Code {
    to_code(write_out(size, size_of_val(&PROGRAM)))
}

pub(crate) extern "C" fn code(_program: *const c_void, code: *mut u8) -> Code {
    to_code(write_out(code, PROGRAM))
}
