//! Whether the dynamic loader will preload the library into a program.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Bytes read from a file: the header and the program headers of an executable, or the first line of a script.
const HEADER_SIZE: u64 = 4096;
/// How many nested script interpreters Linux follows.
const MAX_INTERPRETERS: usize = 4;

/// Why the library cannot be preloaded into an executable file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Obstacle {
    file: PathBuf,
    kind: ObstacleKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ObstacleKind {
    Privileged,
    OtherArchitecture,
    OtherCLibrary,
    LinkedStatically,
}

impl Obstacle {
    /// Whether the program does not start if the library is preloaded. Programs with another obstacle ignore the library.
    pub(super) fn rejects_preload(&self) -> bool {
        self.kind == ObstacleKind::OtherCLibrary
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.kind {
            ObstacleKind::Privileged => "is setuid or setgid, and the loader preloads nothing into it",
            ObstacleKind::OtherArchitecture => "is built for another CPU architecture than the library",
            ObstacleKind::OtherCLibrary => "uses the C library musl, and the library needs the GNU C library",
            ObstacleKind::LinkedStatically => "is linked statically, and the loader preloads nothing into it",
        };
        write!(f, "{} {why}", self.file.display())
    }
}

/// Why the library cannot be preloaded into a program. None if it can, or if the file cannot be read: running the program
/// reports that error.
pub(super) fn obstacle(program: &OsStr) -> Option<Obstacle> {
    let (file, header, privileged) = find_binary(program)?;
    let kind = if privileged { ObstacleKind::Privileged } else { elf_obstacle(&header)? };
    Some(Obstacle { file, kind })
}

/// The file that Linux executes for a program, which is the interpreter if the program is a script; the beginning of the file;
/// and whether running it changes the user or group.
pub(super) fn find_binary(program: &OsStr) -> Option<(PathBuf, Vec<u8>, bool)> {
    let mut path = find(program)?;
    for _ in 0..MAX_INTERPRETERS {
        let (header, privileged) = read_header(&path)?;
        // Linux ignores the setuid bits of scripts.
        match interpreter(&header) {
            Some(interpreter) => path = interpreter,
            None => return Some((path, header, privileged)),
        }
    }
    None
}

/// Finds a program as `execvp` does.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|file| file.is_file())
}

/// The beginning of a file, and whether running it changes the user or group.
fn read_header(path: &Path) -> Option<(Vec<u8>, bool)> {
    let file = File::open(path).ok()?;
    let meta = file.metadata().ok()?;
    let setuid = meta.mode() & 0o4000 != 0 && meta.uid() != rustix::process::getuid().as_raw();
    let setgid = meta.mode() & 0o2010 == 0o2010 && meta.gid() != rustix::process::getgid().as_raw();
    let mut header = Vec::new();
    file.take(HEADER_SIZE).read_to_end(&mut header).ok()?;
    Some((header, setuid || setgid))
}

/// The interpreter of a script; for `#!/usr/bin/env x` it is `x`.
fn interpreter(header: &[u8]) -> Option<PathBuf> {
    let line = header.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line
        .split(|byte| matches!(byte, b' ' | b'\t'))
        .filter(|word| !word.is_empty())
        .map(OsStr::from_bytes);
    let first = Path::new(words.next()?);
    let is_env = first.file_name().is_some_and(|name| name == "env");
    let argument = words.find(|word| is_env && !word.as_bytes().starts_with(b"-"));
    argument.and_then(find).or_else(|| Some(first.to_owned()))
}

/// Why the library cannot be preloaded into this ELF file. None for other files.
fn elf_obstacle(file: &[u8]) -> Option<ObstacleKind> {
    const MAGIC: &[u8] = b"\x7fELF";
    const BITS_64: u64 = 2;
    const LITTLE_ENDIAN: u64 = 1;
    const INTERPRETER: u64 = 3;
    #[cfg(target_arch = "x86_64")]
    const MACHINE: u64 = 62;
    #[cfg(target_arch = "aarch64")]
    const MACHINE: u64 = 183;
    let number = |at: usize, length: usize| -> Option<u64> {
        let bytes = file.get(at..at + length)?;
        Some(bytes.iter().rev().fold(0, |number, byte| (number << 8) | u64::from(*byte)))
    };
    if !file.starts_with(MAGIC) {
        return None;
    }
    if number(4, 1)? != BITS_64 || number(5, 1)? != LITTLE_ENDIAN || number(18, 2)? != MACHINE {
        return Some(ObstacleKind::OtherArchitecture);
    }
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for n in 0..count {
        let at = usize::try_from(table.checked_add(n * size)?).ok()?;
        // A program header beyond `HEADER_SIZE` is not examined.
        if number(at, 4)? == INTERPRETER {
            let begin = usize::try_from(number(at + 8, 8)?).ok()?;
            let length = usize::try_from(number(at + 32, 8)?).ok()?;
            let loader = file.get(begin..begin.checked_add(length)?)?;
            let name = loader.rsplit(|byte| *byte == b'/').next()?;
            return name.starts_with(b"ld-musl-").then_some(ObstacleKind::OtherCLibrary);
        }
    }
    Some(ObstacleKind::LinkedStatically)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dynamic_and_unreadable_programs_have_no_obstacle() {
        for program in ["sh", "/bin/sh", "/proc/self/exe", "/no/such/file", "no-such-program"] {
            assert_eq!(obstacle(OsStr::new(program)), None, "{program}");
        }
    }

    #[test]
    fn executable_without_a_loader_is_static() {
        let mut file = vec![0; 64 + 56];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[18] = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
        (file[32], file[54], file[56], file[64]) = (64, 56, 1, 1);
        assert_eq!(elf_obstacle(&file), Some(ObstacleKind::LinkedStatically));
        file[64] = 3;
        assert_eq!(elf_obstacle(&file), None);
        // The name of the loader follows.
        (file[64 + 8], file[64 + 32]) = (64 + 56, 26);
        let named = |name: &[u8]| [&file, name].concat();
        assert_eq!(elf_obstacle(&named(b"/lib/ld-musl-x86_64.so.1\0\0")), Some(ObstacleKind::OtherCLibrary));
        assert_eq!(elf_obstacle(&named(b"/lib/ld-linux-x86-64.so.2\0")), None);
        file[18] = 3;
        assert_eq!(elf_obstacle(&file), Some(ObstacleKind::OtherArchitecture));
        assert_eq!(elf_obstacle(&file[..20]), Some(ObstacleKind::OtherArchitecture));
        assert_eq!(elf_obstacle(b"just text"), None);
    }

    #[test]
    fn only_a_program_with_another_c_library_rejects_the_library() {
        use ObstacleKind::{LinkedStatically, OtherArchitecture, OtherCLibrary, Privileged};
        let kinds = [Privileged, OtherArchitecture, OtherCLibrary, LinkedStatically];
        let rejects = kinds.map(|kind| Obstacle { file: "/bin/x".into(), kind }.rejects_preload());
        assert_eq!(rejects, [false, false, true, false]);
    }

    #[test]
    fn script_is_judged_by_its_interpreter() {
        assert_eq!(interpreter(b"#! /bin/sh -e\nexit"), Some("/bin/sh".into()));
        assert!(interpreter(b"#!/usr/bin/env -S sh\n").unwrap().ends_with("sh"));
        assert_eq!(interpreter(b"echo"), None);
    }
}
