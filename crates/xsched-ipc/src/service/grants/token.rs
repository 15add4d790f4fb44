//! The hash of a token. The service keeps no token: neither its memory, nor its file, nor a listing reveals one.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest as _, Sha256};

/// The SHA-256 of a token. A token is a long random secret, so it needs no salt. The time that a comparison of two hashes takes
/// depends on the hashes only, and says nothing about the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct TokenHash([u8; 32]);

impl TokenHash {
    pub(in super::super) fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }
}

impl Serialize for TokenHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use std::fmt::Write as _;
        let mut digits = String::with_capacity(64);
        for byte in self.0 {
            let _ = write!(digits, "{byte:02x}");
        }
        serializer.serialize_str(&digits)
    }
}

impl<'de> Deserialize<'de> for TokenHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let digits = String::deserialize(deserializer)?;
        let invalid = || de::Error::custom("the hash of a token has 64 hexadecimal digits");
        let mut bytes = [0; 32];
        if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(invalid());
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| invalid())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| invalid())?;
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_is_decoded_as_encoded_and_does_not_contain_the_token() {
        let hash = TokenHash::of("abc");
        let text = serde_json::to_string(&hash).unwrap();
        // The example of FIPS 180-2.
        assert!(text.starts_with("\"ba7816bf8f01cfea414140de5dae2223"), "{text}");
        assert_eq!(serde_json::from_str::<TokenHash>(&text).unwrap(), hash);
        assert_ne!(TokenHash::of("abd"), hash);
        for invalid in
            ["\"\"", "\"zz\"", "1", &format!("\"{}\"", "+1".repeat(32)), &format!("\"{}\"", "é".repeat(32))]
        {
            assert!(serde_json::from_str::<TokenHash>(invalid).is_err(), "{invalid}");
        }
    }
}
