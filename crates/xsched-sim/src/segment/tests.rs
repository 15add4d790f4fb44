//! Attaching to what is and what is not a device; and the tools with which the model is tested.

use std::io::Write;
use std::os::unix::fs::FileExt;

use super::*;
use crate::process::Process;

/// A model of its own, outside any segment, at time 0. Far too large for the stack.
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

/// Puts rubbish into a model, most of it where it hurts: before the log and the rings.
pub(crate) fn overwrite(model: &mut Model, rubbish: &[(proptest::sample::Index, u64)]) {
    let words = size_of::<Model>() / size_of::<u64>();
    let start = ptr::from_mut(model).cast::<u64>();
    for (n, (place, word)) in rubbish.iter().enumerate() {
        let place = place.index(if n % 8 == 0 { words } else { 6_000 });
        // SAFETY: `place` is below the number of words in the model, which is aligned for them and holds integers
        // only, so any word is valid.
        unsafe { start.add(place).write(*word) };
    }
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn message(result: Result<Segment, AttachError>) -> String {
    result.err().expect("it must be refused").to_string()
}

#[test]
fn what_is_not_a_device_is_named_and_refused() {
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
fn another_version_is_refused() {
    let dir = directory();
    let path = dir.path().join("device");
    drop(Segment::create_at(&path, &Config::default()).unwrap());
    drop(Segment::open(&path).unwrap());
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&7_u32.to_ne_bytes(), 8).unwrap();
    assert!(message(Segment::open(&path)).contains("has layout version 7, this program knows 1"));
}

#[test]
fn a_name_that_is_taken_stays_with_what_has_it() {
    let dir = directory();
    let path = dir.path().join("device");
    std::fs::write(&path, "mine").unwrap();
    assert!(message(Segment::create_at(&path, &Config::default())).contains("cannot give it its name"));
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "the draft is removed");
}

#[test]
fn the_memory_cannot_be_cut_off_under_the_others() {
    let segment = Segment::create(&Config::default()).unwrap();
    let file = File::from(segment.fd().try_clone_to_owned().unwrap());
    assert!(file.set_len(0).is_err());
}

/// Set in the process that is to die holding the lock: the path of the device.
const DIE_AT: &str = "XSCHED_SIM_DIE_HOLDING_THE_LOCK";

/// Not a test by itself: what the process started by the next test does.
#[test]
fn helper_that_dies_holding_the_lock() {
    let Some(path) = std::env::var_os(DIE_AT) else { return };
    let segment = Segment::open(Path::new(&path)).unwrap();
    let mut guard = segment.lock(&Locker::new(Process::current()));
    // What it leaves behind would stop the device for an hour.
    guard.advance(Nanos::now() + Nanos::from_secs(3600));
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
}

#[test]
fn the_lock_of_a_killed_process_is_taken_over() {
    let dir = directory();
    let path = dir.path().join("device");
    let segment = Segment::create_at(&path, &Config::default()).unwrap();
    for only_tries in [false, true] {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "segment::tests::helper_that_dies_holding_the_lock"])
            .env(DIE_AT, &path)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        assert!(!child.wait().unwrap().success());
        assert!(!segment.layout().lock.is_free(), "it died without the lock");
        let me = Locker::new(Process::current());
        let guard = if only_tries {
            std::iter::repeat_with(|| segment.try_lock(&me)).find_map(|guard| guard).unwrap()
        } else {
            segment.lock(&me)
        };
        assert!(guard.now() <= Nanos::now(), "what it left half written was not repaired");
        drop(guard);
        assert!(segment.layout().lock.is_free());
    }
}
