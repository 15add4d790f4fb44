//! Finds `libxsched.so` and builds the variables that load it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use super::can_be_preloaded;

const FILE: &str = "libxsched.so";

/// The library that `XSCHED_LIBRARY` names, else the library that was installed or built with this program.
pub(crate) fn find() -> anyhow::Result<PathBuf> {
    let named = std::env::var_os("XSCHED_LIBRARY").map(PathBuf::from);
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    find_for(&program, named)
}

/// The library at the path `named`, else the library installed with `program`.
pub(crate) fn find_for(program: &Path, named: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let candidates = named.map_or_else(|| beside(program), |path| vec![path]);
    let Some(found) = candidates.iter().find(|path| path.is_file()) else {
        let searched: Vec<_> = candidates.iter().map(|path| path.display().to_string()).collect();
        bail!("cannot find {FILE} (searched {}): set XSCHED_LIBRARY to its path", searched.join(", "));
    };
    let found = absolute(found).with_context(|| format!("cannot find {}", found.display()))?;
    if !can_be_preloaded(found.as_os_str()) {
        bail!("{} cannot be preloaded: its path contains a space or a colon", found.display());
    }
    Ok(found)
}

/// The absolute path of a file. The file name itself is not resolved: it may be a link to one version, and an upgrade
/// replaces the link while programs run.
fn absolute(file: &Path) -> std::io::Result<PathBuf> {
    let name = file.file_name().unwrap_or_default();
    let directory = file.parent().filter(|directory| !directory.as_os_str().is_empty());
    Ok(directory.unwrap_or(Path::new(".")).canonicalize()?.join(name))
}

fn beside(program: &Path) -> Vec<PathBuf> {
    let directory = program.parent().unwrap_or(Path::new("/"));
    let above = directory.parent().unwrap_or(directory);
    ["", "lib", "lib/xsched", "lib64", "lib64/xsched"]
        .iter()
        .map(|place| if place.is_empty() { directory.join(FILE) } else { above.join(place).join(FILE) })
        .collect()
}

/// Libraries of the original C++ XSched, which hook the same functions.
pub(crate) const ORIGINAL_XSCHED_LIBRARIES: [&str; 3] = ["libshim", "libpreempt", "libhal"];

/// The value for `LD_PRELOAD`: the library, then the existing entries. Also returns the entries that were removed because
/// they hook the same functions.
pub(super) fn preload(library: &Path, before: Option<OsString>) -> (OsString, Vec<PathBuf>) {
    let mut value = library.as_os_str().to_owned();
    let mut removed = Vec::new();
    let before = before.unwrap_or_default();
    let entries =
        before.as_bytes().split(|byte| matches!(byte, b':' | b' ')).filter(|entry| !entry.is_empty());
    for entry in entries.map(|entry| Path::new(OsStr::from_bytes(entry))) {
        // Nested `xsched run`, or a link to the library: the loader needs it once.
        let is_same_file = || Some(entry.canonicalize().ok()? == library.canonicalize().ok()?);
        if entry == library || is_same_file() == Some(true) {
            continue;
        }
        if is_scheduler_library(entry) {
            removed.push(entry.to_owned());
            continue;
        }
        value.push(":");
        value.push(entry);
    }
    (value, removed)
}

/// The value for `HSA_TOOLS_LIB`, by which older versions of `ROCr` load the library. Existing tools stay first: the library calls
/// their functions as the real ones.
pub(super) fn tools(library: &Path, before: Option<OsString>) -> OsString {
    let mut value = before.unwrap_or_default();
    let named =
        value.as_bytes().split(|byte| *byte == b' ').any(|entry| entry == library.as_os_str().as_bytes());
    if !named {
        if !value.is_empty() {
            value.push(" ");
        }
        value.push(library);
    }
    value
}

/// Whether the name of a library is that of a scheduler which hooks the same functions.
fn is_scheduler_library(library: &Path) -> bool {
    let name = library.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with(FILE) || ORIGINAL_XSCHED_LIBRARIES.iter().any(|other| name.starts_with(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_preloads_are_kept_without_duplicates() {
        let with = |before: Option<&str>| {
            let (value, removed) = preload(Path::new("/x.so"), before.map(OsString::from));
            assert_eq!(removed, Vec::<PathBuf>::new());
            value
        };
        assert_eq!(with(None), "/x.so");
        assert_eq!(with(Some("")), "/x.so");
        assert_eq!(with(Some("/a.so /b.so")), "/x.so:/a.so:/b.so");
        assert_eq!(with(Some("/a.so:/x.so")), "/x.so:/a.so");
    }

    #[test]
    fn other_scheduler_libraries_are_removed_and_reported() {
        let before = "/old/libxsched.so:/a.so libshimcuda.so /cpp/libpreempt.so:/usr/lib/libxsched.so.1";
        let (value, removed) = preload(Path::new("/new/libxsched.so"), Some(before.into()));
        assert_eq!(value, "/new/libxsched.so:/a.so");
        let expected =
            ["/old/libxsched.so", "libshimcuda.so", "/cpp/libpreempt.so", "/usr/lib/libxsched.so.1"];
        assert_eq!(removed, expected.map(PathBuf::from));
    }

    #[test]
    fn existing_hsa_tools_stay_first_without_duplicates() {
        let with = |before: Option<&str>| tools(Path::new("/x.so"), before.map(OsString::from));
        assert_eq!(with(None), "/x.so");
        assert_eq!(with(Some("")), "/x.so");
        assert_eq!(with(Some("/a.so \"/b c.so\"")), "/a.so \"/b c.so\" /x.so");
        assert_eq!(with(Some("/a.so /x.so")), "/a.so /x.so");
    }

    #[test]
    fn installed_library_is_found_beside_the_program() {
        let places = beside(Path::new("/usr/bin/xsched"));
        assert!(places.contains(&PathBuf::from("/usr/lib/libxsched.so")));
        assert_eq!(places[0], Path::new("/usr/bin/libxsched.so"));
    }
}
