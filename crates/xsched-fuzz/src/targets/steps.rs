//! Reads an input as a sequence of steps: every sequence of bytes is one.

/// The unread rest of an input.
pub(super) struct Steps<'a>(pub(super) &'a [u8]);

impl Steps<'_> {
    /// The next byte, if there is one.
    pub(super) fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// The next byte, or 0.
    pub(super) fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    /// Yes or no.
    pub(super) fn flag(&mut self) -> bool {
        self.byte() & 1 == 0
    }

    /// A number: small ones need one byte.
    pub(super) fn number(&mut self) -> u64 {
        match self.byte() {
            0xff => (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte())),
            0xfe => u64::MAX - u64::from(self.byte()),
            0xfd => 1 << (self.byte() & 63),
            small => small.into(),
        }
    }

    /// An index below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end.max(1)
    }

    /// A short text.
    pub(super) fn text(&mut self) -> String {
        let length = self.below(24).min(self.0.len());
        let (text, rest) = self.0.split_at(length);
        self.0 = rest;
        String::from_utf8_lossy(text).into_owned()
    }
}
