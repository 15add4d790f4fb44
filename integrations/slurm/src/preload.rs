//! The environment variables by which the programs of a job are scheduled: the same as those of `xsched run`.

use std::path::Path;

/// The value of `LD_PRELOAD`: the library first, as `xsched run` does, then the job's own entries.
pub(crate) fn with_library(library: &Path, before: &str) -> String {
    let library = library.to_string_lossy();
    // The environment of a step comes from another machine, where the library may have another path: only one copy can be used.
    let is_library =
        |entry: &str| entry.rsplit('/').next().is_some_and(|name| name.starts_with("libxsched.so"));
    let others = before.split([':', ' ']).filter(|entry| !entry.is_empty() && !is_library(entry));
    std::iter::once(&*library).chain(others).collect::<Vec<_>>().join(":")
}

/// The value of `HSA_TOOLS_LIB`, by which AMD's older runtimes load the library: after the tools of the job.
pub(crate) fn with_tool(library: &Path, before: &str) -> String {
    let library = library.to_string_lossy();
    let others = before.split(' ').filter(|entry| !entry.is_empty() && *entry != library);
    others.chain(std::iter::once(&*library)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_the_job_are_kept_and_the_library_is_named_once() {
        let library = Path::new("/lib/libxsched.so");
        assert_eq!(with_library(library, ""), "/lib/libxsched.so");
        assert_eq!(
            with_library(library, "/a.so:/lib/libxsched.so /b.so:/opt/libxsched.so.0"),
            "/lib/libxsched.so:/a.so:/b.so"
        );
        assert_eq!(with_tool(library, "/t.so"), "/t.so /lib/libxsched.so");
        assert_eq!(with_tool(library, "/lib/libxsched.so /t.so"), "/t.so /lib/libxsched.so");
    }
}
