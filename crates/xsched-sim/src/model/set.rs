//! A set of queues as four words: what the model scans instead of all 256 queues.

use super::MAX_QUEUES;

const WORDS: usize = MAX_QUEUES / 64;

/// Queue numbers from 0 to 255. Any four words are a valid set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct QueueSet([u64; WORDS]);

impl QueueSet {
    /// No queue at all.
    pub(crate) const EMPTY: Self = Self([0; WORDS]);

    fn word_and_bit(queue: u32) -> (usize, u64) {
        (queue as usize / 64 % WORDS, 1 << (queue % 64))
    }

    pub(crate) fn insert(&mut self, queue: u32) {
        let (word, bit) = Self::word_and_bit(queue);
        self.0[word] |= bit;
    }

    pub(crate) fn remove(&mut self, queue: u32) {
        let (word, bit) = Self::word_and_bit(queue);
        self.0[word] &= !bit;
    }

    /// The members at the time of the call, lowest first; the set may change during the iteration.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + use<> {
        let mut words = self.0;
        let mut word = 0;
        std::iter::from_fn(move || {
            while words[word] == 0 {
                word += 1;
                if word == WORDS {
                    word = WORDS - 1;
                    return None;
                }
            }
            let bit = words[word].trailing_zeros();
            words[word] &= words[word] - 1;
            Some(u32::try_from(word).unwrap_or(0) * 64 + bit)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iteration_returns_what_was_inserted() {
        let mut set = QueueSet::EMPTY;
        for queue in [0, 63, 64, 130, 255] {
            set.insert(queue);
        }
        set.remove(64);
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 63, 130, 255]);
        assert_eq!(QueueSet::EMPTY.iter().next(), None);
    }
}
