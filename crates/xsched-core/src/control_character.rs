//! Characters that names must not contain.

/// Whether a character controls the terminal or the order of the text around it. Names with such characters could pass for
/// others.
#[must_use]
pub fn is_control(c: char) -> bool {
    // Marks, embeddings, overrides and isolates of bidirectional text, and separators of lines and paragraphs.
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
