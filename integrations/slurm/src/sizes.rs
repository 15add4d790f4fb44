//! Sizes of memory with a unit, such as `20G`. Units are powers of 1024, as in Slurm.

use xsched_ipc::memory::MemoryLimit;

/// Unlike elsewhere in XSched a number without a unit is refused: Slurm would read it as MiB.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    if text.ends_with(|c: char| c.is_ascii_digit()) {
        return Err(format!("size `{text}` is not a size with a unit, such as 512M or 20G"));
    }
    xsched_core::parse_size(text).map_err(|why| format!("size {why}"))
}

/// In the largest unit that gives a whole number.
pub(crate) fn display_size(bytes: u64) -> String {
    MemoryLimit::Bytes(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("20G"), Ok(20 << 30));
        assert_eq!(parse_size("512mib"), Ok(512 << 20));
        for wrong in ["", "20", "2097152", "0G", "-1G", "20X", "99999999999999T"] {
            assert!(parse_size(wrong).unwrap_err().starts_with("size `"), "{wrong}");
        }
        assert_eq!(display_size(20 << 30), "20G");
    }
}
