//! Readable names of kernels, from the symbols of C++.

/// The name of the namespace that a compiler makes of a namespace without a name.
const ANONYMOUS: &str = "_GLOBAL__N_";

/// The qualified name in a mangled symbol, up to its template arguments; other symbols as they are. The names of template arguments and
/// parameters, hundreds of characters in many libraries, stay in the symbol.
///
/// ```text
///   _ZN2at6native11copy_kernelILi4EfEEviT0_   at::native::copy_kernel
///      └┬┘└──┬───┘└─────┬─────┘└ template arguments
/// ```
pub(super) fn readable(symbol: &str) -> String {
    let Some(mut rest) = symbol.strip_prefix("_Z") else { return symbol.to_owned() };
    rest = rest.strip_prefix('N').unwrap_or(rest);
    let mut parts = Vec::new();
    loop {
        // Functions of one file.
        let from = rest.strip_prefix('L').unwrap_or(rest);
        let digits = from.bytes().take_while(u8::is_ascii_digit).count();
        let Ok(length) = from[..digits].parse::<usize>() else { break };
        // A cut symbol may end in the middle of a name.
        let Some(part) = from[digits..].get(..length) else { break };
        if !part.starts_with(ANONYMOUS) {
            parts.push(part);
        }
        rest = &from[digits + length..];
    }
    if parts.is_empty() { symbol.to_owned() } else { parts.join("::") }
}

#[cfg(test)]
mod tests {
    use super::readable;

    #[test]
    fn qualified_names_are_found_in_symbols() {
        for (symbol, name) in [
            ("vector_add", "vector_add"),
            ("_Z10vector_addPKfS0_Pfi", "vector_add"),
            ("_ZL6helperPf", "helper"),
            ("_ZN2at6native11copy_kernelILi4EfEEviT0_", "at::native::copy_kernel"),
            ("_ZN12_GLOBAL__N_15scaleEPf", "scale"),
            ("_ZN2at6native11copy_k", "at::native"),
            ("_Z", "_Z"),
            ("_ZN", "_ZN"),
            ("_Z99999999999999999999999a", "_Z99999999999999999999999a"),
            ("_Z3\u{20ac}\u{20ac}x", "\u{20ac}"),
        ] {
            assert_eq!(readable(symbol), name, "{symbol}");
        }
    }
}
