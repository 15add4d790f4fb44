//! Attaching to valid and invalid files; and the helpers for testing the model.

use std::io::Write;
use std::os::unix::fs::FileExt;

use super::*;
use crate::process::Process;

/// A model outside any segment, at time 0, on the heap: it is too large for the stack.
#[expect(clippy::cast_ptr_alignment, reason = "the memory is allocated with the alignment of a model")]
pub(crate) fn new_model(config: &Config) -> Box<Model> {
    let layout = std::alloc::Layout::new::<Model>();
    // SAFETY: `Model` has a size; it holds integers only, so zeros are valid; the box frees it with the same layout.
    let mut model = unsafe {
        let zeroed = std::alloc::alloc_zeroed(layout);
        assert!(!zeroed.is_null());
        Box::from_raw(zeroed.cast::<Model>())
    };
    model.set_up(config, Nanos::ZERO);
    model
}

/// Corrupts a model, mostly in the part before the log and the rings, which controls it.
pub(crate) fn overwrite(model: &mut Model, corruption: &[(proptest::sample::Index, u64)]) {
    let words = size_of::<Model>() / size_of::<u64>();
    let start = ptr::from_mut(model).cast::<u64>();
    for (n, (position, word)) in corruption.iter().enumerate() {
        let position = position.index(if n % 8 == 0 { words } else { 6_000 });
        // SAFETY: `position` is below the number of words in the model, which is aligned for them and holds integers
        // only, so any word is valid.
        unsafe { start.add(position).write(*word) };
    }
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn message(result: Result<Segment, AttachError>) -> String {
    result.err().expect("attaching must fail").to_string()
}

#[test]
fn attaching_to_a_file_that_is_no_device_fails_and_names_it() {
    let dir = directory();
    let path = dir.path().join("device");
    assert!(message(Segment::open(&path)).starts_with(&format!("{}: cannot open", path.display())));

    let mut file = File::create(&path).unwrap();
    file.write_all(b"hello").unwrap();
    let expected = format!("{} is not a simulated device: 5 bytes, not {SIZE}", path.display());
    assert_eq!(message(Segment::open(&path)), expected);

    file.set_len(SIZE_IN_FILE).unwrap();
    assert!(message(Segment::open(&path)).contains("it begins with 0x0000006f6c6c6568"));
}

#[test]
fn another_layout_version_is_rejected() {
    let dir = directory();
    let path = dir.path().join("device");
    drop(Segment::create_at(&path, &Config::default()).unwrap());
    drop(Segment::open(&path).unwrap());
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&7_u32.to_ne_bytes(), 8).unwrap();
    assert!(message(Segment::open(&path)).contains("has layout version 7, this program supports 1"));
}

#[test]
fn creating_a_device_never_replaces_a_file() {
    let dir = directory();
    let path = dir.path().join("device");
    std::fs::write(&path, "existing").unwrap();
    assert!(
        message(Segment::create_at(&path, &Config::default())).contains("cannot link the file to its path")
    );
    assert_eq!(std::fs::read(&path).unwrap(), b"existing");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "the temporary file is removed");
}

#[test]
fn shared_memory_cannot_be_truncated() {
    let segment = Segment::create(&Config::default()).unwrap();
    let file = File::from(segment.fd().try_clone_to_owned().unwrap());
    assert!(file.set_len(0).is_err());
}

/// Set in the process that dies while it holds the lock: the path of the device.
const DYING_PROCESS_DEVICE: &str = "XSCHED_SIM_DIE_HOLDING_THE_LOCK";

/// Not a test by itself: the process that the next test starts.
#[test]
fn helper_that_dies_holding_the_lock() {
    let Some(path) = std::env::var_os(DYING_PROCESS_DEVICE) else { return };
    let segment = Segment::open(Path::new(&path)).unwrap();
    let mut guard = segment.lock(&LockOwner::new(Process::current()));
    // The model time that it leaves behind would stall the device for an hour.
    guard.advance(Nanos::now() + Nanos::from_secs(3600));
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
}

#[test]
fn lock_of_a_killed_process_is_taken_over() {
    let dir = directory();
    let path = dir.path().join("device");
    let segment = Segment::create_at(&path, &Config::default()).unwrap();
    for uses_try_lock in [false, true] {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "segment::tests::helper_that_dies_holding_the_lock"])
            .env(DYING_PROCESS_DEVICE, &path)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        assert!(!child.wait().unwrap().success());
        assert!(!segment.layout().lock.is_free(), "it died without the lock");
        let me = LockOwner::new(Process::current());
        let guard = if uses_try_lock {
            std::iter::repeat_with(|| segment.try_lock(&me)).find_map(|guard| guard).unwrap()
        } else {
            segment.lock(&me)
        };
        assert!(guard.now() <= Nanos::now(), "the half-written model was not repaired");
        drop(guard);
        assert!(segment.layout().lock.is_free());
    }
}
