//! The files of AMD's compute driver, as far as the service needs them: which processes use a GPU, and how much.
//!
//! ```text
//!   /sys/class/kfd/kfd/proc/PID/stats_GPU/cu_occupancy              the compute units that run waves of the process
//!   /sys/class/kfd/kfd/proc/PID/context_N/stats_GPU/cu_occupancy    the same for a further context of the process
//! ```
//!
//! GPU is the driver's id. A read returns the value of that moment, so each file is read several times. The driver has these files
//! on GPUs of the gfx9 family (MI50 to MI300). On others it lists no process here.

use std::path::{Path, PathBuf};
use std::time::Duration;

use xsched_core::DeviceId;

use super::unscheduled::{GpuProcess, Processes};
use crate::kfd_topology::Topology;

/// The pauses between reads, in milliseconds. They differ, so that a program with a period of its own is not always read in the
/// same part of it.
const PAUSES: [u64; 9] = [7, 13, 9, 11, 8, 12, 10, 14, 6];
const READS: u32 = 10;
const _: () = assert!(READS as usize == 1 + PAUSES.len());
/// More processes than this are not looked at.
const MAX_PROCESSES: usize = 1024;

/// A process on a device.
struct Usage {
    device: DeviceId,
    pid: u32,
    files: Vec<PathBuf>,
    /// How many reads found waves of the process.
    busy_reads: u32,
}

impl Usage {
    /// None if the driver has no such file for the process.
    fn is_busy(&self) -> Option<bool> {
        let units = |file: &PathBuf| std::fs::read_to_string(file).ok()?.trim().parse::<u32>().ok();
        self.files.iter().filter_map(units).map(|units| units > 0).reduce(|any, is_busy| any | is_busy)
    }
}

/// The processes on those devices that are AMD's. Takes about 100 ms if there are any.
pub(super) fn processes(driver_files: &Path, devices: &[DeviceId]) -> Processes {
    processes_with(driver_files, devices, std::thread::sleep)
}

fn processes_with(driver_files: &Path, devices: &[DeviceId], mut pause: impl FnMut(Duration)) -> Processes {
    let topology = Topology::read_from(driver_files);
    let gpus: Vec<_> =
        devices.iter().filter_map(|device| Some((*device, topology.gpu_of(*device)?))).collect();
    if gpus.is_empty() {
        return Vec::new();
    }
    let mut usages = list(&driver_files.join("proc"), &gpus);
    usages.retain_mut(|usage| {
        let is_busy = usage.is_busy();
        usage.busy_reads = u32::from(is_busy == Some(true));
        is_busy.is_some()
    });
    for milliseconds in PAUSES {
        if usages.is_empty() {
            break;
        }
        pause(Duration::from_millis(milliseconds));
        for usage in &mut usages {
            usage.busy_reads += u32::from(usage.is_busy() == Some(true));
        }
    }
    let on_device = |device: DeviceId| {
        let its = usages.iter().filter(|usage| usage.device == device);
        its.map(|usage| GpuProcess { pid: usage.pid, utilization: 100 * usage.busy_reads / READS }).collect()
    };
    gpus.iter().map(|(device, _)| (*device, on_device(*device))).collect()
}

/// Every process that has opened the driver, for each GPU.
fn list(processes: &Path, gpus: &[(DeviceId, u32)]) -> Vec<Usage> {
    let mut usages = Vec::new();
    let mut processes: Vec<_> =
        entries(processes, |name| name.parse::<u32>().ok()).take(MAX_PROCESSES).collect();
    processes.sort();
    for (pid, directory) in processes {
        let contexts = entries(&directory, |name| name.strip_prefix("context_").map(|_| ()));
        let places: Vec<_> = contexts.map(|((), context)| context).chain([directory.clone()]).collect();
        usages.extend(gpus.iter().map(|(device, gpu)| {
            let file = |place: &PathBuf| place.join(format!("stats_{gpu}/cu_occupancy"));
            Usage { device: *device, pid, files: places.iter().map(file).collect(), busy_reads: 0 }
        }));
    }
    usages
}

/// The entries of a directory whose names have a meaning. None if there is no such directory.
fn entries<T>(directory: &Path, meaning: impl Fn(&str) -> Option<T>) -> impl Iterator<Item = (T, PathBuf)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(move |entry| Some((meaning(entry.file_name().to_str()?)?, entry.path())))
}

#[cfg(test)]
mod tests {
    use xsched_core::DeviceKind;

    use super::*;

    const GPU: u32 = 1000;
    const PARTITION: u32 = 1001;

    fn device(address: u32) -> DeviceId {
        DeviceId::new(DeviceKind::Gpu, address)
    }

    /// A directory like the driver's, of a GPU with two partitions.
    fn driver_files() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "topology/nodes/0/gpu_id", "0\n");
        write(directory.path(), "topology/nodes/0/properties", "cpu_cores_count 8\n");
        for (node, gpu, location) in [(1, GPU, 0xc100_u32), (2, PARTITION, (1 << 28) | 0xc100)] {
            write(directory.path(), &format!("topology/nodes/{node}/gpu_id"), &format!("{gpu}\n"));
            let properties = format!("simd_count 416\nlocation_id {location}\ndomain 0\n");
            write(directory.path(), &format!("topology/nodes/{node}/properties"), &properties);
        }
        directory
    }

    fn write(directory: &Path, name: &str, text: &str) {
        let file = directory.join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }

    fn process(pid: u32, utilization: u32) -> GpuProcess {
        GpuProcess { pid, utilization }
    }

    #[test]
    fn every_partition_has_its_own_processes_and_other_devices_none() {
        let files = driver_files();
        write(files.path(), "proc/7/stats_1000/cu_occupancy", "104\n");
        write(files.path(), "proc/7/stats_1001/cu_occupancy", "0\n");
        write(files.path(), "proc/8/stats_1001/cu_occupancy", "0\n");
        write(files.path(), "proc/8/context_1/stats_1001/cu_occupancy", "3\n");
        // An entry of another kind, and a process on a GPU that does not count.
        write(files.path(), "proc/self/stats_1000/cu_occupancy", "9\n");
        write(files.path(), "proc/9/stats_1000/evicted_ms", "0\n");
        let devices = [device(0xc100), device(0x0300), device(0xc101)];
        let found = processes_with(files.path(), &devices, |_| ());
        let expected = vec![
            (device(0xc100), vec![process(7, 100)]),
            (device(0xc101), vec![process(7, 0), process(8, 100)]),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn utilization_is_the_part_of_the_reads_that_found_waves() {
        let files = driver_files();
        let occupancy = "proc/7/stats_1000/cu_occupancy";
        write(files.path(), occupancy, "1\n");
        write(files.path(), "proc/8/stats_1000/cu_occupancy", "1\n");
        let mut reads = 1;
        let found = processes_with(files.path(), &[device(0xc100)], |_| {
            reads += 1;
            write(files.path(), occupancy, if reads <= 3 { "1\n" } else { "0\n" });
            if reads == 6 {
                std::fs::remove_dir_all(files.path().join("proc/8")).unwrap();
            }
        });
        assert_eq!(reads, READS);
        assert_eq!(found, [(device(0xc100), vec![process(7, 30), process(8, 50)])]);
    }

    #[test]
    fn driver_without_these_files_lists_no_process_and_is_read_once() {
        let files = driver_files();
        write(files.path(), "proc/7/stats_1000/evicted_ms", "0\n");
        let never = |_| unreachable!("there is nothing to read again");
        assert_eq!(processes_with(files.path(), &[device(0xc100)], never), [(device(0xc100), Vec::new())]);
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(processes_with(empty.path(), &[device(0xc100)], never), []);
    }
}
