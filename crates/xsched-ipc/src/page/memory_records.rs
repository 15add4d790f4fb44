//! The part of the page in which a process publishes its device memory, for status reports.

use std::sync::atomic::{AtomicU64, Ordering};

use xsched_core::DeviceId;

use super::Page;

/// The number of devices whose memory a process can publish.
pub(super) const MEMORY_RECORDS: usize = 128;

/// The memory of the process on one device, in bytes.
#[derive(Debug)]
#[repr(C)]
pub(super) struct MemoryRecord {
    device: AtomicU64,
    used: AtomicU64,
    peak: AtomicU64,
    /// 0 if there is no limit.
    limit: AtomicU64,
}

/// The device memory of a process on one device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// What it has allocated.
    pub used: u64,
    /// The most that it had allocated.
    pub peak: u64,
    /// What it may allocate, together with the processes that have the same limit.
    pub limit: Option<u64>,
}

impl Page {
    fn memory_record(&self, index: usize) -> Option<&MemoryRecord> {
        (index < MEMORY_RECORDS).then(|| {
            // SAFETY: MEMORY_RECORDS records follow the slots within the SIZE mapped bytes, aligned for `MemoryRecord`, and `index`
            // is below that; their fields are atomics, for which every bit pattern is valid.
            unsafe { self.memory_records_base().add(index).as_ref() }
        })
    }

    fn memory_records(&self) -> impl Iterator<Item = &MemoryRecord> {
        let count = self.header().memory_records.load(Ordering::Acquire) as usize;
        (0..count.min(MEMORY_RECORDS)).filter_map(|index| self.memory_record(index))
    }

    /// Publishes the memory of the process on a device. One thread at a time. Devices beyond the 128th are not published.
    pub fn set_memory(&self, device: DeviceId, memory: DeviceMemory) {
        let write = |record: &MemoryRecord| {
            // Relaxed: these are figures for the user.
            record.used.store(memory.used, Ordering::Relaxed);
            record.peak.store(memory.peak, Ordering::Relaxed);
            record.limit.store(memory.limit.unwrap_or(0), Ordering::Relaxed);
        };
        let is_same = |record: &&MemoryRecord| record.device.load(Ordering::Relaxed) == device.0;
        if let Some(record) = self.memory_records().find(is_same) {
            return write(record);
        }
        let count = self.header().memory_records.load(Ordering::Relaxed);
        if let Some(record) = self.memory_record(count as usize) {
            record.device.store(device.0, Ordering::Relaxed);
            write(record);
            // Release: the scheduler finds the device in the record. Pairs with the Acquire in `memory_records`.
            self.header().memory_records.store(count + 1, Ordering::Release);
        }
    }

    /// The memory that the process has published for a device.
    #[must_use]
    pub fn memory(&self, device: DeviceId) -> Option<DeviceMemory> {
        let mut records = self.memory_records();
        let record = records.find(|record| record.device.load(Ordering::Relaxed) == device.0)?;
        Some(DeviceMemory {
            used: record.used.load(Ordering::Relaxed),
            peak: record.peak.load(Ordering::Relaxed),
            limit: Some(record.limit.load(Ordering::Relaxed)).filter(|limit| *limit > 0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_as_published_by_device() {
        let page = Page::create().unwrap();
        let memory = |used, limit| DeviceMemory { used, peak: used, limit };
        assert_eq!(page.memory(DeviceId(0)), None);
        page.set_memory(DeviceId(0), memory(3, None));
        page.set_memory(DeviceId(9), memory(4, Some(5)));
        page.set_memory(DeviceId(0), memory(1, None));
        assert_eq!(page.memory(DeviceId(0)), Some(memory(1, None)));
        assert_eq!(page.memory(DeviceId(9)), Some(memory(4, Some(5))));
    }

    #[test]
    fn invalid_counts_and_too_many_devices_are_tolerated() {
        let page = Page::create().unwrap();
        for device in 0..200 {
            page.set_memory(DeviceId(device), DeviceMemory { used: device, ..DeviceMemory::default() });
        }
        assert_eq!(page.memory(DeviceId(127)).map(|memory| memory.used), Some(127));
        assert_eq!(page.memory(DeviceId(128)), None);
        page.header().memory_records.store(u32::MAX, Ordering::SeqCst);
        assert_eq!(page.memory(DeviceId(128)), None);
    }
}
