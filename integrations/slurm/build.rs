//! Sets the version of Slurm for which the plugin is built. Slurm loads only plugins of its own release.
//!
//! `XSCHED_SLURM_VERSION` (such as `22.05.8`), else `slurm/slurm_version.h`, else 0.0.0: Slurm names that version when it rejects the
//! plugin, and `integrations/slurm/install` rejects it before.

use std::fs;

const HEADERS: [&str; 2] = ["/usr/include/slurm/slurm_version.h", "/usr/local/include/slurm/slurm_version.h"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=XSCHED_SLURM_VERSION");
    for header in HEADERS {
        println!("cargo:rerun-if-changed={header}");
    }
    let version = match std::env::var("XSCHED_SLURM_VERSION") {
        Ok(text) if !text.is_empty() => from_text(&text).unwrap_or_else(|| {
            println!("cargo:warning=XSCHED_SLURM_VERSION={text} is not a version such as 22.05.8: the plugin cannot be loaded");
            0
        }),
        _ => HEADERS.iter().find_map(|path| from_header(&fs::read_to_string(path).ok()?)).unwrap_or(0),
    };
    println!("cargo:rustc-env=SLURM_VERSION_NUMBER={version}");
    let text = format!("{}.{:02}.{}", version >> 16, (version >> 8) & 0xff, version & 0xff);
    println!("cargo:rustc-env=SLURM_VERSION_TEXT={text}");
}

/// `22.05.8`, or `22.05.8-1`, as `SLURM_VERSION_NUMBER` encodes it.
fn from_text(text: &str) -> Option<u32> {
    let mut numbers = text.split(['.', '-']).map(|part| part.parse::<u8>().ok());
    let mut next = || numbers.next().flatten().map(u32::from);
    Some((next()? << 16) | (next()? << 8) | next()?)
}

fn from_header(text: &str) -> Option<u32> {
    let line = text.lines().find(|line| line.starts_with("#define SLURM_VERSION_NUMBER"))?;
    u32::from_str_radix(line.split_whitespace().nth(2)?.strip_prefix("0x")?, 16).ok()
}
