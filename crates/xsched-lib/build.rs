//! Sets the soname: one name for all compatible versions.

fn main() {
    // The loader matches a preloaded copy against this name, so that a program that is linked to the library has one copy.
    let major = env!("CARGO_PKG_VERSION_MAJOR");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libxsched.so.{major}");
    println!("cargo:rerun-if-changed=build.rs");
}
