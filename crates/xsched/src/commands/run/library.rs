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
    let found = found.canonicalize().with_context(|| format!("cannot find {}", found.display()))?;
    if !can_be_listed(found.as_os_str()) {
        bail!("{} cannot be preloaded: its path has a space or a colon in it", found.display());
    }
    Ok(found)
}

fn beside(program: &Path) -> Vec<PathBuf> {
    let directory = program.parent().unwrap_or(Path::new("/"));
    let above = directory.parent().unwrap_or(directory);
    ["", "lib", "lib/xsched", "lib64", "lib64/xsched"]
        .iter()
        .map(|place| if place.is_empty() { directory.join(FILE) } else { above.join(place).join(FILE) })
        .collect()
}

/// The value for `LD_PRELOAD`: the library first, then what is there already.
pub(super) fn preload(library: &Path, before: Option<OsString>) -> OsString {
    let library = library.as_os_str();
    let mut value = library.to_owned();
    let before = before.unwrap_or_default();
    // Once is enough, for whoever is run inside another `xsched run`.
    let others = before
        .as_bytes()
        .split(|byte| matches!(byte, b':' | b' '))
        .filter(|other| !other.is_empty() && *other != library.as_bytes());
    for other in others {
        value.push(":");
        value.push(OsStr::from_bytes(other));
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_preloaded_before_stays_and_nothing_comes_twice() {
        let with = |before: Option<&str>| preload(Path::new("/x.so"), before.map(OsString::from));
        assert_eq!(with(None), "/x.so");
        assert_eq!(with(Some("")), "/x.so");
        assert_eq!(with(Some("/a.so /b.so")), "/x.so:/a.so:/b.so");
        assert_eq!(with(Some("/a.so:/x.so")), "/x.so:/a.so");
    }

    #[test]
    fn an_installed_library_is_found_beside_the_program() {
        let places = beside(Path::new("/usr/bin/xsched"));
        assert!(places.contains(&PathBuf::from("/usr/lib/libxsched.so")));
        assert_eq!(places[0], Path::new("/usr/bin/libxsched.so"));
    }
}
