//! Where `libxsched.so` is, and how it is preloaded.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use super::can_be_listed;

const FILE: &str = "libxsched.so";

/// The library: what `XSCHED_LIBRARY` names, else the one that was installed or built with this program.
pub(crate) fn find() -> anyhow::Result<PathBuf> {
    let named = std::env::var_os("XSCHED_LIBRARY").map(PathBuf::from);
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    find_for(&program, named)
}

/// The library of this `program`, unless another one is `named`.
pub(crate) fn find_for(program: &Path, named: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let places = named.map_or_else(|| beside(program), |path| vec![path]);
    let Some(found) = places.iter().find(|path| path.is_file()) else {
        let looked: Vec<_> = places.iter().map(|path| path.display().to_string()).collect();
        bail!("cannot find {FILE} (looked at {}): name it in XSCHED_LIBRARY", looked.join(", "));
    };
    let found = whole(found).with_context(|| format!("cannot find {}", found.display()))?;
    if !can_be_listed(found.as_os_str()) {
        bail!("{} cannot be preloaded: its path has a space or a colon in it", found.display());
    }
    Ok(found)
}

/// The whole path of a file. Its own name stays: it may be a link to the file of a version, which the next one replaces
/// while programs run.
fn whole(file: &Path) -> std::io::Result<PathBuf> {
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

/// Libraries of the C++ implementation, which hook the same functions.
pub(crate) const OF_ANOTHER_XSCHED: [&str; 3] = ["libshim", "libpreempt", "libhal"];

/// The value for `LD_PRELOAD`: the library first, then what is there already; and what of that was left out, for a program
/// can have only one scheduler.
pub(super) fn preload(library: &Path, before: Option<OsString>) -> (OsString, Vec<PathBuf>) {
    let mut value = library.as_os_str().to_owned();
    let mut left_out = Vec::new();
    let before = before.unwrap_or_default();
    let entries =
        before.as_bytes().split(|byte| matches!(byte, b':' | b' ')).filter(|entry| !entry.is_empty());
    for entry in entries.map(|entry| Path::new(OsStr::from_bytes(entry))) {
        // Once is enough, for whoever is run inside another `xsched run`, or names one of the library's other names.
        let same = || Some(entry.canonicalize().ok()? == library.canonicalize().ok()?);
        if entry == library || same() == Some(true) {
            continue;
        }
        if is_a_scheduler(entry) {
            left_out.push(entry.to_owned());
            continue;
        }
        value.push(":");
        value.push(entry);
    }
    (value, left_out)
}

/// The value for `HSA_TOOLS_LIB`, by which AMD's older runtimes find us: whoever is there comes first and keeps working, for
/// what it puts before the runtime's functions is real to us.
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

/// Whether a library by its name hooks what ours hooks.
fn is_a_scheduler(library: &Path) -> bool {
    let name = library.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with(FILE) || OF_ANOTHER_XSCHED.iter().any(|other| name.starts_with(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_preloaded_before_stays_and_nothing_comes_twice() {
        let with = |before: Option<&str>| {
            let (value, left_out) = preload(Path::new("/x.so"), before.map(OsString::from));
            assert_eq!(left_out, Vec::<PathBuf>::new());
            value
        };
        assert_eq!(with(None), "/x.so");
        assert_eq!(with(Some("")), "/x.so");
        assert_eq!(with(Some("/a.so /b.so")), "/x.so:/a.so:/b.so");
        assert_eq!(with(Some("/a.so:/x.so")), "/x.so:/a.so");
    }

    #[test]
    fn another_scheduler_is_left_out_and_named() {
        let before = "/old/libxsched.so:/a.so libshimcuda.so /cpp/libpreempt.so:/usr/lib/libxsched.so.1";
        let (value, left_out) = preload(Path::new("/new/libxsched.so"), Some(before.into()));
        assert_eq!(value, "/new/libxsched.so:/a.so");
        let expected =
            ["/old/libxsched.so", "libshimcuda.so", "/cpp/libpreempt.so", "/usr/lib/libxsched.so.1"];
        assert_eq!(left_out, expected.map(PathBuf::from));
    }

    #[test]
    fn other_tools_come_first_and_none_comes_twice() {
        let with = |before: Option<&str>| tools(Path::new("/x.so"), before.map(OsString::from));
        assert_eq!(with(None), "/x.so");
        assert_eq!(with(Some("")), "/x.so");
        assert_eq!(with(Some("/a.so \"/b c.so\"")), "/a.so \"/b c.so\" /x.so");
        assert_eq!(with(Some("/a.so /x.so")), "/a.so /x.so");
    }

    #[test]
    fn an_installed_library_is_found_beside_the_program() {
        let places = beside(Path::new("/usr/bin/xsched"));
        assert!(places.contains(&PathBuf::from("/usr/lib/libxsched.so")));
        assert_eq!(places[0], Path::new("/usr/bin/libxsched.so"));
    }
}
