//! Sets the soname: one name for all compatible versions. Writes the manifest of the Vulkan layer beside the library.

use std::path::{Path, PathBuf};

fn main() {
    // The loader matches a preloaded copy against this name, so that a program that is linked to the library has one copy.
    let major = env!("CARGO_PKG_VERSION_MAJOR");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libxsched.so.{major}");
    println!("cargo:rerun-if-changed=build.rs");
    write_vulkan_manifest(major);
}

/// The manifest names the library by its soname, so that Vulkan's loader gets the preloaded copy. It has a directory of its own, which
/// `xsched run` passes to that loader.
fn write_vulkan_manifest(major: &str) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/platforms/vulkan/VkLayer_xsched.json");
    println!("cargo:rerun-if-changed={}", source.display());
    let text = std::fs::read_to_string(&source).expect("the manifest is part of the sources");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    // OUT_DIR is PROFILE/build/PACKAGE/out.
    let profile = out.ancestors().nth(3).expect("cargo's layout of the target directory");
    let directory = profile.join("vulkan");
    std::fs::create_dir_all(&directory).expect("the target directory is writable");
    std::fs::write(directory.join("VkLayer_xsched.json"), text.replace("@MAJOR@", major))
        .expect("the target directory is writable");
}
