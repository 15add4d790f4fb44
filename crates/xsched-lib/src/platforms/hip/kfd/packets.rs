//! Whether the queues of this process have packets that the device is not done with.
//!
//! The process passed two words of its own memory to the driver when it created a queue: how many packets it has written, and
//! how many the device is done with. Comparing them calls neither the runtime nor the driver. The runtime's own query,
//! `hipStreamQuery`, may place a packet in the queue, and sets the last error of the calling thread.
//!
//! The device may be done with a packet when it has started its kernel. A program that waits for a kernel has placed a packet after
//! it, with which the device is not done until the kernel has completed.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use super::queues_on;

/// More queues of one GPU are not examined. A stream uses one of at most 4 queues of its priority.
const MAX_QUEUES: usize = 32;

/// Whether a queue of a GPU has packets that the device is not done with. None if that is not known.
pub(in super::super) fn has_pending_packets(gpu: Option<u32>) -> Option<bool> {
    let words = queues_on(gpu)
        .map(|queue| [queue.write_index.load(Ordering::Relaxed), queue.read_index.load(Ordering::Relaxed)]);
    let mut addresses = [[0; 2]; MAX_QUEUES];
    let mut count = 0;
    for (place, words) in addresses.iter_mut().zip(words.filter(|words| !words.contains(&0))) {
        *place = words;
        count += 1;
    }
    let mut indices = [[0; 2]; MAX_QUEUES];
    let known = read_words(addresses[..count].as_flattened(), indices[..count].as_flattened_mut()) / 2;
    let is_pending = indices[..known].iter().any(|[written, done]| written != done);
    (known > 0).then_some(is_pending)
}

/// Reads words of this process. Returns how many were read.
///
/// By the kernel: the program may destroy a queue, and unmap its words, at the same time.
fn read_words(addresses: &[usize], words: &mut [u64]) -> usize {
    const WORD: usize = size_of::<u64>();
    let mut remote = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: WORD }; 2 * MAX_QUEUES];
    for (part, address) in remote.iter_mut().zip(addresses) {
        part.iov_base = std::ptr::without_provenance_mut(*address);
    }
    let count = addresses.len().min(words.len()).min(remote.len());
    let local = libc::iovec { iov_base: words.as_mut_ptr().cast::<c_void>(), iov_len: count * WORD };
    // SAFETY: `words` has room for `count` words. The kernel reads nothing at an address that is not mapped.
    let bytes = unsafe {
        let pid = libc::getpid();
        libc::process_vm_readv(pid, &raw const local, 1, remote.as_ptr(), count as libc::c_ulong, 0)
    };
    usize::try_from(bytes).unwrap_or(0) / WORD
}

#[cfg(test)]
mod tests {
    use super::read_words;

    #[test]
    fn words_are_read_up_to_the_first_that_is_not_mapped() {
        let (own, mut found) = ([7_u64, 8], [0; 3]);
        let addresses = [0, 1].map(|place| (&raw const own[place]).addr());
        assert_eq!((read_words(&addresses, &mut found), found), (2, [7, 8, 0]));
        let unmapped = [addresses[1], 8, addresses[0]];
        assert_eq!((read_words(&unmapped, &mut found), found[0]), (1, 8));
        assert_eq!(read_words(&[], &mut []), 0);
    }
}
