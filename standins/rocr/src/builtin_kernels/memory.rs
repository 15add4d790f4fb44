//! The changes of memory that kernels consist of. Addresses are numbers, as in the packets.

use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// When a wait is over. `x` is the word and `v` the value, both masked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    /// `x >= v`, unsigned.
    GreaterOrEqual,
    /// `x == v`.
    Equal,
    /// `x & v != 0`.
    And,
    /// A bit of the mask is set in neither `x` nor `v`.
    Nor,
}

impl Comparison {
    /// Whether `word` satisfies the condition, in `all`: the bits of the words that are compared.
    fn holds(self, word: u64, value: u64, mask: u64, all: u64) -> bool {
        let (word, value, mask) = (word & all, value & all, mask & all);
        match self {
            Self::GreaterOrEqual => word & mask >= value,
            Self::Equal => word & mask == value,
            Self::And => word & mask & value != 0,
            Self::Nor => (word | value) & mask != mask,
        }
    }
}

/// One change of memory, or a wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Rows of bytes in slices. The extent is bytes per row, rows, slices.
    CopyRect { from: usize, from_pitches: [usize; 2], to: usize, to_pitches: [usize; 2], extent: [usize; 3] },
    /// `size` bytes of a pattern, which is repeated.
    Fill { to: usize, size: usize, pattern: Vec<u8> },
    /// A pattern is written at every element of each row, in bytes except for `columns` and `rows`.
    FillRows { to: usize, element: usize, columns: usize, rows: usize, pitch: usize, pattern: Vec<u8> },
    /// A word is written.
    Write { to: usize, value: u64, is_32_bits: bool },
    /// The kernel runs until the word satisfies the condition.
    Wait { at: usize, value: u64, mask: u64, comparison: Comparison, is_32_bits: bool },
    /// `*counter += 1`.
    Increment { counter: usize },
    /// `to[n] += from[n]`.
    AddFloats { to: usize, from: usize, count: usize },
}

impl Step {
    pub(super) fn copy(from: usize, to: usize, size: usize) -> Self {
        Self::CopyRect { from, from_pitches: [0; 2], to, to_pitches: [0; 2], extent: [size, 1, 1] }
    }

    pub(super) fn fill(to: usize, size: usize, pattern: &[u8]) -> Self {
        Self::Fill { to, size, pattern: pattern.to_vec() }
    }

    /// How many bytes the step writes.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = match self {
            Self::CopyRect { extent: [width, rows, slices], .. } => {
                width.saturating_mul(*rows).saturating_mul(*slices)
            }
            Self::Fill { size, .. } => *size,
            Self::FillRows { element, columns, rows, .. } => {
                element.saturating_mul(*columns).saturating_mul(*rows)
            }
            Self::AddFloats { count, .. } => count.saturating_mul(4),
            Self::Write { .. } | Self::Wait { .. } | Self::Increment { .. } => 8,
        };
        bytes as u64
    }

    /// Carries the step out; false if it is a wait that is not over.
    ///
    /// # Safety
    /// The memory that the step names is valid. The program may access it at the same time, as on a device: then its
    /// contents are undefined until the kernel has ended.
    pub(super) unsafe fn perform(&self) -> bool {
        // SAFETY: as the caller guarantees, here and below.
        unsafe {
            match self {
                Self::CopyRect { from, from_pitches, to, to_pitches, extent: [width, rows, slices] } => {
                    for slice in 0..*slices {
                        for row in 0..*rows {
                            let from = from + row * from_pitches[0] + slice * from_pitches[1];
                            let to = to + row * to_pitches[0] + slice * to_pitches[1];
                            copy(from, to, *width);
                        }
                    }
                }
                Self::Fill { to, size, pattern } => fill(*to, *size, pattern),
                Self::FillRows { to, element, columns, rows, pitch, pattern } => {
                    for row in 0..*rows {
                        let start = to + row * pitch;
                        if pattern.len() == *element {
                            fill(start, columns * element, pattern);
                        } else {
                            // Each element is the start of a whole pattern; later ones overwrite earlier ones.
                            (0..*columns).for_each(|n| fill(start + n * element, pattern.len(), pattern));
                        }
                    }
                }
                Self::Write { to, value, is_32_bits: true } => {
                    let value = u32::try_from(value & u64::from(u32::MAX)).unwrap_or_default();
                    (*with_exposed_provenance::<AtomicU32>(*to)).store(value, Ordering::Release);
                }
                Self::Write { to, value, is_32_bits: false } => {
                    (*with_exposed_provenance::<AtomicU64>(*to)).store(*value, Ordering::Release);
                }
                Self::Wait { at, value, mask, comparison, is_32_bits: true } => {
                    let word = (*with_exposed_provenance::<AtomicU32>(*at)).load(Ordering::Acquire);
                    return comparison.holds(word.into(), *value, *mask, u32::MAX.into());
                }
                Self::Wait { at, value, mask, comparison, is_32_bits: false } => {
                    let word = (*with_exposed_provenance::<AtomicU64>(*at)).load(Ordering::Acquire);
                    return comparison.holds(word, *value, *mask, u64::MAX);
                }
                Self::Increment { counter } => {
                    (*with_exposed_provenance::<AtomicU64>(*counter)).fetch_add(1, Ordering::AcqRel);
                }
                Self::AddFloats { to, from, count } => {
                    let to = with_exposed_provenance_mut::<f32>(*to);
                    let from = with_exposed_provenance::<f32>(*from);
                    for n in 0..*count {
                        to.add(n).write_unaligned(to.add(n).read_unaligned() + from.add(n).read_unaligned());
                    }
                }
            }
        }
        true
    }
}

/// # Safety
/// `from` is valid for reads and `to` for writes of `size` bytes.
unsafe fn copy(from: usize, to: usize, size: usize) {
    let (from, to) = (with_exposed_provenance::<u8>(from), with_exposed_provenance_mut::<u8>(to));
    // SAFETY: as the caller guarantees; the two may overlap.
    unsafe { std::ptr::copy(from, to, size) };
}

/// # Safety
/// `to` is valid for writes of `size` bytes.
unsafe fn fill(to: usize, size: usize, pattern: &[u8]) {
    let start = with_exposed_provenance_mut::<u8>(to);
    // A pattern of equal bytes, which is what most fills are, is one call.
    if let Some(first) = pattern.first().filter(|first| pattern.iter().all(|byte| byte == *first)) {
        // SAFETY: as the caller guarantees.
        return unsafe { start.write_bytes(*first, size) };
    }
    let mut written = 0;
    while written < size && !pattern.is_empty() {
        let count = pattern.len().min(size - written);
        // SAFETY: `written + count` is at most `size`.
        unsafe { std::ptr::copy_nonoverlapping(pattern.as_ptr(), start.add(written), count) };
        written += count;
    }
}

/// A copy of `size` bytes.
///
/// # Safety
/// `at` is valid for reads of `size` bytes.
pub(super) unsafe fn read(at: usize, size: usize) -> Vec<u8> {
    // SAFETY: as the caller guarantees.
    unsafe { std::slice::from_raw_parts(with_exposed_provenance::<u8>(at), size) }.to_vec()
}

/// The ranges of elements that work-items cover which start `stride` elements apart, and go on by `chunk` elements until
/// they reach the element `end`: first element, and number of work-items that write there.
fn chunks(end: usize, stride: usize, chunk: usize, items: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = move |start: usize| items.min((end - start).div_ceil(stride));
    let starts = (0..).map(move |n: usize| n.saturating_mul(chunk)).take_while(move |start| *start < end);
    // Work-items that do not advance would run for ever; the runtime never launches them.
    let limit = if chunk == 0 { 1 } else { usize::MAX };
    starts.take(limit).map(move |start| (start, count(start)))
}

/// The number of elements from `start` to `end`; the last one may be incomplete.
fn elements(start: usize, end: usize, element: usize) -> usize {
    end.saturating_sub(start).div_ceil(element)
}

/// A kernel in which each of `items` work-items writes whole patterns, `chunk` elements apart, up to the address `end`.
pub(super) fn fill_chunks(
    to: usize,
    pattern: &[u8],
    element: usize,
    end: usize,
    chunk: usize,
    items: usize,
) -> Vec<Step> {
    let stride = (pattern.len() / element).max(1);
    let fill =
        |(start, count): (usize, usize)| Step::fill(to + start * element, count * pattern.len(), pattern);
    merge(chunks(elements(to, end, element), stride, chunk, items).map(fill))
}

/// A kernel in which each of `items` work-items copies elements that are `chunk` elements apart, up to the address `end`.
pub(super) fn copy_chunks(
    from: usize,
    to: usize,
    element: usize,
    end: usize,
    chunk: usize,
    items: usize,
) -> Vec<Step> {
    let copy = |(start, count): (usize, usize)| {
        Step::copy(from + start * element, to + start * element, count * element)
    };
    merge(chunks(elements(to, end, element), 1, chunk, items).map(copy))
}

/// Joins steps that continue each other, so that a large copy is one step and not one for each pass of the work-items.
fn merge(steps: impl Iterator<Item = Step>) -> Vec<Step> {
    let mut merged: Vec<Step> = Vec::new();
    for step in steps {
        match (merged.last_mut(), &step) {
            (Some(Step::Fill { to, size, pattern }), Step::Fill { to: next, size: more, pattern: same })
                if *to + *size == *next && pattern == same && size.is_multiple_of(pattern.len()) =>
            {
                *size += more;
            }
            (
                Some(Step::CopyRect { from, to, extent, .. }),
                Step::CopyRect { from: next_from, to: next_to, extent: more, .. },
            ) if *from + extent[0] == *next_from && *to + extent[0] == *next_to => extent[0] += more[0],
            _ => merged.push(step),
        }
    }
    merged
}
