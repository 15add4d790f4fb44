//! Programs that are built with the address sanitizer.
//!
//! The runtime of the sanitizer exits at once if another library comes before it, as a preloaded one does. The library replaces
//! none of the functions that the runtime replaces, so the order makes no difference, and the check is disabled. The variable
//! reaches child processes too.

use std::ffi::{CStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// The sanitizer's options.
pub(super) const VARIABLE: &str = "ASAN_OPTIONS";
const CHECK: &str = "verify_asan_link_order";

/// How the names of the runtime's library begin, of GCC and of Clang. A runtime in the executable itself checks nothing.
const RUNTIMES: [&str; 2] = ["libasan.so", "libclang_rt.asan"];

/// The value for [`VARIABLE`]. An explicit choice of the user stays.
pub(super) fn options(before: Option<OsString>) -> OsString {
    let before = before.unwrap_or_default();
    if before.as_bytes().windows(CHECK.len()).any(|part| part == CHECK.as_bytes()) {
        return before;
    }
    let mut value = OsString::from(format!("{CHECK}=0"));
    if !before.is_empty() {
        value.push(":");
        value.push(before);
    }
    value
}

/// Whether an executable loads the runtime of the address sanitizer.
pub(super) fn is_needed_by(executable: &Path) -> bool {
    let names = File::open(executable).ok().and_then(|file| needed_libraries(&file)).unwrap_or_default();
    names.iter().any(|name| RUNTIMES.iter().any(|runtime| name.starts_with(runtime)))
}

/// A program header, as far as it is needed here.
struct Segment {
    kind: u64,
    offset: u64,
    address: u64,
    size: u64,
}

/// The libraries that an ELF file of 64 bits names as needed. None if the file is something else.
fn needed_libraries(file: &File) -> Option<Vec<String>> {
    const LOAD: u64 = 1;
    const DYNAMIC: u64 = 2;
    const MAX_DYNAMIC_SIZE: u64 = 1 << 16;
    const NEEDED: u64 = 1;
    const STRING_TABLE: u64 = 5;
    let header = read(file, 0, 64)?;
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (table, size, count) = (number(&header, 32, 8)?, number(&header, 54, 2)?, number(&header, 56, 2)?);
    let segments: Vec<Segment> = (0..count)
        .filter_map(|n| {
            let entry = read(file, table.checked_add(n * size)?, 56)?;
            let field = |at, length| number(&entry, at, length);
            Some(Segment {
                kind: field(0, 4)?,
                offset: field(8, 8)?,
                address: field(16, 8)?,
                size: field(32, 8)?,
            })
        })
        .collect();
    let dynamic = segments.iter().find(|segment| segment.kind == DYNAMIC)?;
    let entries = read(file, dynamic.offset, usize::try_from(dynamic.size.min(MAX_DYNAMIC_SIZE)).ok()?)?;
    let entries =
        || entries.chunks_exact(16).filter_map(|entry| Some((number(entry, 0, 8)?, number(entry, 8, 8)?)));
    let (_, strings) = entries().find(|(tag, _)| *tag == STRING_TABLE)?;
    let in_file = |segment: &Segment| {
        let within = strings.checked_sub(segment.address).filter(|within| *within < segment.size)?;
        segment.offset.checked_add(within)
    };
    let strings = segments.iter().filter(|segment| segment.kind == LOAD).find_map(in_file)?;
    let needed = entries().filter(|(tag, _)| *tag == NEEDED);
    Some(needed.filter_map(|(_, name)| text(file, strings.checked_add(name)?)).collect())
}

fn read(file: &File, at: u64, length: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

/// A little-endian number.
fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + length)?;
    Some(bytes.iter().rev().fold(0, |number, byte| (number << 8) | u64::from(*byte)))
}

/// A text that ends with a zero, or its beginning.
fn text(file: &File, at: u64) -> Option<String> {
    let mut bytes = [0; 65];
    let length = file.read_at(&mut bytes[..64], at).ok()?;
    Some(CStr::from_bytes_until_nul(&bytes[..=length]).ok()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_is_added_before_those_of_the_user() {
        let with = |before: Option<&str>| options(before.map(OsString::from));
        assert_eq!(with(None), "verify_asan_link_order=0");
        assert_eq!(with(Some("")), "verify_asan_link_order=0");
        assert_eq!(with(Some("detect_leaks=0")), "verify_asan_link_order=0:detect_leaks=0");
        assert_eq!(with(Some("verify_asan_link_order=1")), "verify_asan_link_order=1");
    }

    #[test]
    fn libraries_of_an_executable_are_read_and_of_other_files_not() {
        let executable = File::open("/proc/self/exe").unwrap();
        let names = needed_libraries(&executable).unwrap();
        assert!(names.iter().any(|name| name.starts_with("libc.so")), "{names:?}");
        assert!(needed_libraries(&File::open("/proc/self/maps").unwrap()).is_none());
        assert!(!is_needed_by(Path::new("/no/such/file")));
    }
}
