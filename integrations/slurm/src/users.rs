//! Names of users and of this machine, and random numbers, from the C library.

use std::ffi::CStr;

/// The name of a user, else the number.
pub(crate) fn name_of(uid: u32) -> String {
    let mut buffer = vec![0_u8; 16 * 1024];
    // SAFETY: all zeros is a valid value of this plain structure.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    // SAFETY: the buffer has the given size; entry and buffer outlive the use of the result below.
    let result = unsafe {
        libc::getpwuid_r(uid, &raw mut entry, buffer.as_mut_ptr().cast(), buffer.len(), &raw mut found)
    };
    if result != 0 || found.is_null() {
        return uid.to_string();
    }
    // SAFETY: the function succeeded, so the name is a C string in the buffer.
    unsafe { CStr::from_ptr(entry.pw_name) }.to_string_lossy().into_owned()
}

/// The name of this machine, without its domain: what Slurm calls the node unless it is configured otherwise.
pub(crate) fn hostname() -> String {
    let mut buffer = [0_u8; 256];
    // SAFETY: the buffer has the given size, less the last byte, which stays zero.
    if unsafe { libc::gethostname(buffer.as_mut_ptr().cast(), buffer.len() - 1) } != 0 {
        return "localhost".to_owned();
    }
    let name = CStr::from_bytes_until_nul(&buffer).unwrap_or_default().to_string_lossy();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// A secret of 64 hexadecimal digits; none if the kernel has no random numbers.
pub(crate) fn random_token() -> Option<String> {
    let mut bytes = [0_u8; 32];
    // SAFETY: the buffer has the given size.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), libc::GRND_NONBLOCK) };
    if usize::try_from(got) != Ok(bytes.len()) {
        return None;
    }
    let digit = |value: u8| char::from_digit(value.into(), 16);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_names_and_tokens_differ() {
        assert_eq!(name_of(0), "root");
        assert_eq!(name_of(u32::MAX - 9), (u32::MAX - 9).to_string());
        assert!(!hostname().is_empty() && !hostname().contains('.'));
        let (first, second) = (random_token().unwrap(), random_token().unwrap());
        assert!(first.len() == 64 && first != second);
    }
}
