//! Gives the library the name that programs know it by.

fn main() {
    // Whoever links it, or opens `libcuda.so.1` once it is preloaded, finds this one, whatever its file is called.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rerun-if-changed=build.rs");
}
