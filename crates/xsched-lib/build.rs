//! Gives the library the name that programs linked to it ask for: one for all versions that fit together.

fn main() {
    // A preloaded copy answers to this name too, so a program that is linked to the library has one copy, not two.
    let major = env!("CARGO_PKG_VERSION_MAJOR");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libxsched.so.{major}");
    println!("cargo:rerun-if-changed=build.rs");
}
