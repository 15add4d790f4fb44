//! Sets the library's soname.

fn main() {
    // A program that links the library, or opens `libcuda.so.1` after it was preloaded, must find it by this name.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rerun-if-changed=build.rs");
}
