//! Whether the system will preload our library into a program.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Enough for the header and the program headers of any executable, and for the first line of any script.
const BEGINNING: u64 = 4096;
/// Scripts whose interpreter is a script, and so on: as far as Linux follows them.
const DEEPEST: usize = 4;

/// Why the library will not be loaded into a program, if it is known that it will not. What cannot be read or found is
/// not known: running it tells more.
pub(super) fn obstacle(program: &OsStr) -> Option<String> {
    let mut path = find(program)?;
    for _ in 0..DEEPEST {
        let (beginning, privileged) = look(&path)?;
        // Linux ignores the bits on scripts, and so do we.
        match interpreter(&beginning) {
            Some(interpreter) => path = interpreter,
            None if privileged => {
                return Some(format!(
                    "{} runs with the rights of its owner (setuid), and the system preloads nothing into it",
                    path.display()
                ));
            }
            None => return elf_obstacle(&beginning).map(|why| format!("{} {why}", path.display())),
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

/// How a file begins, and whether running it changes who runs.
fn look(path: &Path) -> Option<(Vec<u8>, bool)> {
    let file = File::open(path).ok()?;
    let meta = file.metadata().ok()?;
    let setuid = meta.mode() & 0o4000 != 0 && meta.uid() != rustix::process::getuid().as_raw();
    let setgid = meta.mode() & 0o2010 == 0o2010 && meta.gid() != rustix::process::getgid().as_raw();
    let mut beginning = Vec::new();
    file.take(BEGINNING).read_to_end(&mut beginning).ok()?;
    Some((beginning, setuid || setgid))
}

/// The interpreter of a script; for `#!/usr/bin/env x` it is `x` that counts.
fn interpreter(beginning: &[u8]) -> Option<PathBuf> {
    let line = beginning.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line
        .split(|byte| matches!(byte, b' ' | b'\t'))
        .filter(|word| !word.is_empty())
        .map(OsStr::from_bytes);
    let first = Path::new(words.next()?);
    let is_env = first.file_name().is_some_and(|name| name == "env");
    let meant = words.find(|word| is_env && !word.as_bytes().starts_with(b"-"));
    meant.and_then(find).or_else(|| Some(first.to_owned()))
}

/// What is wrong with an executable, for our purpose. None too if it is no executable.
fn elf_obstacle(file: &[u8]) -> Option<&'static str> {
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
        return Some("is made for another kind of processor than this library");
    }
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for n in 0..count {
        let at = usize::try_from(table.checked_add(n * size)?).ok()?;
        // Beyond what was read: not known.
        if number(at, 4)? == INTERPRETER {
            return None;
        }
    }
    Some("is linked statically, and the system preloads nothing into it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_programs_have_no_obstacle_and_neither_has_what_cannot_be_read() {
        for program in ["sh", "/bin/sh", "/proc/self/exe", "/no/such/file", "no-such-program"] {
            assert_eq!(obstacle(OsStr::new(program)), None, "{program}");
        }
    }

    #[test]
    fn an_executable_without_a_loader_is_static() {
        let mut file = vec![0; 64 + 56];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[18] = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
        (file[32], file[54], file[56], file[64]) = (64, 56, 1, 1);
        assert!(elf_obstacle(&file).unwrap().contains("statically"));
        file[64] = 3;
        assert_eq!(elf_obstacle(&file), None);
        file[18] = 3;
        assert!(elf_obstacle(&file).unwrap().contains("another kind of processor"));
        assert_eq!(
            elf_obstacle(&file[..20]),
            Some("is made for another kind of processor than this library")
        );
        assert_eq!(elf_obstacle(b"just text"), None);
    }

    #[test]
    fn scripts_are_what_their_interpreter_is() {
        assert_eq!(interpreter(b"#! /bin/sh -e\nexit"), Some("/bin/sh".into()));
        assert!(interpreter(b"#!/usr/bin/env -S sh\n").unwrap().ends_with("sh"));
        assert_eq!(interpreter(b"echo"), None);
    }
}
