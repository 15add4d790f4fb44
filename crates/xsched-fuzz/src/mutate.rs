//! Random numbers, and random changes of an input.

/// The longest input.
pub(crate) const MAX_LENGTH: usize = 12 * 1024;

/// A generator of random numbers: `SplitMix64`.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 if `end` is 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() >> 33).unwrap_or(0) % end.max(1)
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}

/// Numbers at which programs fail.
const NUMBERS: &[i128] = &[
    0,
    1,
    -1,
    2,
    3,
    4,
    7,
    8,
    15,
    16,
    63,
    64,
    65,
    100,
    101,
    127,
    128,
    253,
    254,
    255,
    256,
    -255,
    -256,
    -257,
    999,
    1_000,
    1_023,
    1_024,
    4_095,
    4_096,
    8_191,
    8_192,
    8_193,
    32_767,
    32_768,
    65_535,
    65_536,
    1_000_000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xffff_ffff_ffff_ffff,
    -0x8000_0000,
    -0x8000_0000_0000_0000,
    0x1_0000_0000_0000_0000,
    9_007_199_254_740_993,
];

/// A range of `bytes`, shorter ones more often.
fn range(bytes: &[u8], random: &mut Random) -> std::ops::Range<usize> {
    let start = random.below(bytes.len() + 1);
    let longest = if random.below(8) == 0 { bytes.len() } else { 16 };
    let length = random.below((bytes.len() - start).min(longest) + 1);
    start..start + length
}

/// Changes `input`, with words of the target and parts of another input.
pub(crate) fn mutate(input: &mut Vec<u8>, other: &[u8], words: &[&str], random: &mut Random) {
    let changes = if random.below(4) == 0 { 1 + random.below(12) } else { 1 + random.below(3) };
    for _ in 0..changes {
        change(input, other, words, random);
    }
    input.truncate(MAX_LENGTH);
}

fn change(input: &mut Vec<u8>, other: &[u8], words: &[&str], random: &mut Random) {
    let at = random.below(input.len());
    match random.below(14) {
        0 if !input.is_empty() => input[at] ^= 1 << random.below(8),
        1 if !input.is_empty() => input[at] = random.byte(),
        2 => {
            let byte = random.byte();
            input.insert(random.below(input.len() + 1), byte);
        }
        3 | 4 => drop(input.drain(range(input, random))),
        5 => {
            let piece = input[range(input, random)].to_vec();
            let times = if random.below(16) == 0 { random.below(64) } else { 1 };
            for _ in 0..times {
                if input.len() + piece.len() <= MAX_LENGTH {
                    insert(input, &piece, random);
                }
            }
        }
        6 => replace_number(input, random),
        7 => {
            let number = NUMBERS[random.below(NUMBERS.len())].to_le_bytes();
            let width = [1, 2, 4, 8][random.below(4)];
            for (byte, new) in input.iter_mut().skip(at).zip(&number[..width]) {
                *byte = *new;
            }
        }
        8 | 9 => {
            let word = words.get(random.below(words.len())).unwrap_or(&"").as_bytes();
            if random.below(2) == 0 {
                insert(input, word, random);
            } else {
                let range = range(input, random);
                input.splice(range, word.iter().copied());
            }
        }
        10 | 11 => {
            let piece = &other[range(other, random)];
            if random.below(2) == 0 {
                insert(input, piece, random);
            } else {
                let range = range(input, random);
                input.splice(range, piece.iter().copied());
            }
        }
        12 => {
            // The beginning of one and the end of the other.
            input.truncate(random.below(input.len() + 1));
            input.extend_from_slice(&other[random.below(other.len() + 1)..]);
        }
        _ => input.extend((0..random.below(8)).map(|_| random.byte())),
    }
}

fn insert(input: &mut Vec<u8>, piece: &[u8], random: &mut Random) {
    let at = random.below(input.len() + 1);
    input.splice(at..at, piece.iter().copied());
}

/// Replaces a number in decimal digits by another.
fn replace_number(input: &mut Vec<u8>, random: &mut Random) {
    let starts =
        |index: &usize| input[*index].is_ascii_digit() && (*index == 0 || !input[index - 1].is_ascii_digit());
    let numbers: Vec<usize> = (0..input.len()).filter(starts).collect();
    let Some(start) = numbers.get(random.below(numbers.len())).copied() else { return };
    let length = input[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = NUMBERS[random.below(NUMBERS.len())].to_string();
    input.splice(start..start + length, number.into_bytes());
}
