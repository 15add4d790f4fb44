//! Keeps the grants in a file beside the socket, so that they survive a restart of the service.
//!
//! ```text
//!   {"version":1,"boot":"..."}         the head
//!   {"set":{"grant":{...},...}}        a grant, or what replaces it
//!   {"remove":"slurm-123"}             its end
//! ```
//!
//! A change appends a line, so that its cost does not depend on the number of grants. The file is replaced as a whole when the
//! service starts, and when most of its lines are obsolete. Only the user of the service can read it, and it contains the hashes of
//! tokens only.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use xsched_core::Nanos;

use super::super::{Service, process};
use super::cgroups::{GroupDirectories, normalize};
use super::handlers::DESCRIPTOR_USER;
use super::table::{AwaitedProcess, MAX_GRANTS};
use super::{Entry, Grants, TokenHash};
use crate::grant::MIN_TOKEN_LENGTH;
use crate::protocol::Grant;

/// The version of the format.
const VERSION: u32 = 1;
/// The maximum size of the file: that of the maximum number of grants with the longest fields.
const MAX_SIZE: u64 = 64 << 20;

/// The file is replaced if it has so many obsolete lines more than twice the number of grants.
const MAX_OBSOLETE_LINES: usize = 64;

/// The first line of the file.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    version: u32,
    /// Identifies the start of the machine: numbers of processes and inodes of control groups are of that time.
    boot: String,
}

impl Head {
    fn current() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self { version: VERSION, boot: boot.trim().to_owned() }
    }
}

/// A further line.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Set(Box<StoredGrant>),
    Remove(String),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredGrant {
    grant: Grant,
    token: Option<TokenHash>,
    is_suspended: bool,
    directories: GroupDirectories,
    /// When the process was started that the grant depends on.
    start_time: Option<u64>,
}

/// A change of the grants that has been made.
#[derive(Clone, Copy)]
pub(super) enum Change<'a> {
    /// The grant of this name was given or changed.
    Set(&'a str),
    /// The grant of this name has ended.
    Remove(&'a str),
}

impl StoredGrant {
    fn of(entry: &Entry) -> Self {
        Self {
            grant: entry.grant.clone(),
            token: entry.token,
            is_suspended: entry.is_suspended,
            directories: (*entry.directories).clone(),
            start_time: entry.awaited.map(|awaited| awaited.start_time),
        }
    }

    /// The entry of a grant; none if its control group or process has gone.
    fn into_entry(self, grants: &mut Grants, number: u32) -> Result<Option<Entry>, String> {
        let Self { grant, token, is_suspended, directories, start_time } = self;
        // The token itself is not stored. The rest is validated with another one.
        let placeholder = token.map(|_| "x".repeat(MIN_TOKEN_LENGTH));
        Grant { token: placeholder, ..grant.clone() }.validate()?;
        let has_path = |path: &String| normalize(path).as_ref() == Some(path);
        if grant.token.is_some() || !grant.cgroup.iter().all(has_path) {
            return Err(format!("grant {} is not as this service writes it", grant.name));
        }
        let mut awaited = None;
        if let Some(pid) = grant.until_exit_of {
            if start_time.is_none() || process::start_time(pid) != start_time {
                return Ok(None);
            }
            awaited = start_time.map(|start_time| AwaitedProcess { number, start_time });
        }
        if grant.cgroup.is_some() && !directories.exist() {
            return Ok(None);
        }
        Ok(Some(Entry {
            id: grants.id_for(&grant.name),
            name: grant.name.as_str().into(),
            grant,
            token,
            is_suspended,
            directories: Arc::new(directories),
            awaited,
        }))
    }
}

/// The file of the grants of the service at `socket`.
fn path_for(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".grants");
    path.into()
}

/// Opens the file, if there is one, and checks that no other user can have written it.
fn open(path: &Path) -> Result<Option<File>, String> {
    // A symbolic link could lead to any file, and opening a pipe could block.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = match File::options().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => {
            return Err("it is a symbolic link".to_owned());
        }
        Err(error) => return Err(error.to_string()),
    };
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() || metadata.mode() & 0o077 != 0 {
        return Err("it belongs to another user, or other users can access it".to_owned());
    }
    Ok(Some(file))
}

/// The grants in the text of a file, by name. None if it is from before the machine was restarted.
fn parse(text: &str) -> Result<Option<BTreeMap<String, StoredGrant>>, String> {
    let mut lines = text.lines().enumerate();
    let head = lines.next().map_or("", |(_, line)| line);
    let head: Head = serde_json::from_str(head).map_err(|error| format!("line 1: {error}"))?;
    if head.version != VERSION {
        return Err(format!("it has format {}, not {VERSION}", head.version));
    }
    if head != Head::current() {
        return Ok(None);
    }
    let mut grants = BTreeMap::new();
    for (number, line) in lines {
        match serde_json::from_str(line).map_err(|error| format!("line {}: {error}", number + 1))? {
            Line::Set(stored) => drop(grants.insert(stored.grant.name.clone(), *stored)),
            Line::Remove(name) => drop(grants.remove(&name)),
        }
    }
    if grants.len() > MAX_GRANTS {
        return Err(format!("it has more than {MAX_GRANTS} grants"));
    }
    Ok(Some(grants))
}

/// The file of the grants.
pub(in super::super) struct Store {
    path: PathBuf,
    /// None if it does not exist, or is not usable: then the next change replaces it.
    file: Option<File>,
    length: u64,
    lines: usize,
}

impl Store {
    /// The file of the service at `socket`. It is not read or written yet.
    pub(in super::super) fn beside(socket: &Path) -> Self {
        Self { path: path_for(socket), file: None, length: 0, lines: 0 }
    }

    /// Writes a change that has been made to `grants`. If it fails, the file is as before.
    fn write(&mut self, grants: &Grants, change: Change<'_>) -> io::Result<()> {
        if grants.len() == 0 {
            return self.remove();
        }
        let Some(file) = self.file.as_mut().filter(|_| self.lines <= 2 * grants.len() + MAX_OBSOLETE_LINES)
        else {
            return self.replace(grants);
        };
        let line = match change {
            Change::Remove(name) => Line::Remove(name.to_owned()),
            Change::Set(name) => match grants.named(name) {
                Some(entry) => Line::Set(StoredGrant::of(entry).into()),
                None => return Ok(()),
            },
        };
        let mut text = serde_json::to_vec(&line)?;
        text.push(b'\n');
        if let Err(error) = file.write_all(&text) {
            // Part of the line may have been written. If this fails too, the file is replaced with the next change.
            if file.set_len(self.length).is_err() {
                self.file = None;
            }
            return Err(error);
        }
        self.length += text.len() as u64;
        self.lines += 1;
        Ok(())
    }

    fn remove(&mut self) -> io::Result<()> {
        self.file = None;
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Replaces the file by one with all grants.
    fn replace(&mut self, grants: &Grants) -> io::Result<()> {
        let mut text = serde_json::to_vec(&Head::current())?;
        text.push(b'\n');
        for entry in grants.iter() {
            serde_json::to_writer(&mut text, &Line::Set(StoredGrant::of(entry).into()))?;
            text.push(b'\n');
        }
        let mut draft = self.path.as_os_str().to_owned();
        draft.push(".new");
        match std::fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // A new file: no link is followed, and no other process has it open.
        let mut file = File::options().append(true).create_new(true).mode(0o600).open(&draft)?;
        file.write_all(&text)?;
        std::fs::rename(&draft, &self.path)?;
        (self.file, self.length, self.lines) = (Some(file), text.len() as u64, grants.len());
        Ok(())
    }

    /// Reads the file of the previous service. Also returns a message for the user.
    fn read(&self) -> Result<(BTreeMap<String, StoredGrant>, Option<String>), String> {
        let Some(file) = open(&self.path)? else { return Ok(Default::default()) };
        let mut text = String::new();
        file.take(MAX_SIZE).read_to_string(&mut text).map_err(|error| error.to_string())?;
        // A service that could not complete a line has not confirmed the change.
        let complete = text.rfind('\n').map_or(0, |end| end + 1);
        let incomplete = (complete < text.len())
            .then(|| format!("the last line of {} is incomplete and is ignored", self.path.display()));
        Ok((parse(&text[..complete])?.unwrap_or_default(), incomplete))
    }
}

impl Service {
    /// Writes a change that has been made.
    pub(super) fn save(&mut self, change: Change<'_>) -> Result<(), String> {
        let path = self.grant_store.path.display();
        let failed = format!("cannot write {path}");
        self.grant_store.write(&self.grants, change).map_err(|error| format!("{failed}: {error}"))
    }

    /// Reads the grants of the previous service. Reports in one line if they are not usable: then the service starts without grants.
    pub(in super::super) fn restore_grants(&mut self) {
        let restored = self.grant_store.read().and_then(|(stored, incomplete)| {
            self.warnings.extend(incomplete);
            self.restored(stored)
        });
        match restored {
            Ok(entries) => self.add_restored(entries),
            Err(why) => self.warnings.push(format!(
                "the grants in {} are ignored: {}; give them again with `xsched grant`",
                self.grant_store.path.display(),
                process::clean(&why)
            )),
        }
    }

    fn restored(&mut self, stored: BTreeMap<String, StoredGrant>) -> Result<Vec<Entry>, String> {
        let mut entries = Vec::new();
        for grant in stored.into_values() {
            self.last_awaited = self.last_awaited.wrapping_add(1);
            entries.extend(grant.into_entry(&mut self.grants, self.last_awaited)?);
        }
        Ok(entries)
    }

    fn add_restored(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            let (name, pid) = (Arc::clone(&entry.name), entry.grant.until_exit_of);
            self.grants.insert(entry);
            let pidfd = pid.and_then(process::pidfd);
            if pidfd.is_some() && self.usages.add_descriptor(DESCRIPTOR_USER).is_ok() {
                self.watch_awaited(&name, pidfd);
            } else if pid.is_some() {
                self.grants.remove(&name);
            }
        }
        // Without the grants that have ended meanwhile. If it fails, the next change replaces the file.
        let _ = if self.grants.len() == 0 {
            self.grant_store.remove()
        } else {
            self.grant_store.replace(&self.grants)
        };
        self.schedule_group_check(Nanos::now());
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::entry;
    use super::*;

    fn add(grants: &mut Grants, number: usize) -> String {
        let (name, token) = (format!("grant-{number}"), Some(format!("{number:032}")));
        let added = entry(grants, Grant { name: name.clone(), token, ..Grant::default() });
        grants.insert(added);
        name
    }

    #[test]
    fn changes_are_read_back_and_obsolete_lines_are_removed() {
        let place = tempfile::tempdir().unwrap();
        let socket = place.path().join("socket");
        let (mut store, mut grants) = (Store::beside(&socket), Grants::default());
        for number in 0..10 {
            let name = add(&mut grants, number);
            store.write(&grants, Change::Set(&name)).unwrap();
        }
        grants.remove("grant-3");
        store.write(&grants, Change::Remove("grant-3")).unwrap();
        let names = || Store::beside(&socket).read().unwrap().0.into_keys().collect::<Vec<_>>();
        assert_eq!(names().len(), 9);
        assert!(!names().contains(&"grant-3".to_owned()));
        for _ in 0..1_000 {
            store.write(&grants, Change::Set("grant-5")).unwrap();
            assert!(store.lines <= 2 * 9 + MAX_OBSOLETE_LINES + 1, "{}", store.lines);
        }
        let lines = std::fs::read_to_string(&store.path).unwrap().lines().count();
        assert_eq!((lines, names().len()), (store.lines + 1, 9));
        for name in names() {
            grants.remove(&name);
            store.write(&grants, Change::Remove(&name)).unwrap();
        }
        assert!(!store.path.exists() && names().is_empty());
    }

    #[test]
    fn incomplete_line_is_reported_and_an_earlier_start_of_the_machine_does_not_count() {
        let place = tempfile::tempdir().unwrap();
        let (mut store, mut grants) = (Store::beside(&place.path().join("socket")), Grants::default());
        let name = add(&mut grants, 1);
        store.write(&grants, Change::Set(&name)).unwrap();
        let valid = std::fs::read_to_string(&store.path).unwrap();
        std::fs::write(&store.path, format!("{valid}{{\"set\":{{")).unwrap();
        let (stored, message) = store.read().unwrap();
        assert!(stored.len() == 1 && message.unwrap().contains("is incomplete"));
        for (text, expected) in [
            (valid.replace("\"version\":1", "\"version\":2"), "format 2"),
            (format!("{valid}nonsense\n"), "line 3"),
            (String::new(), "line 1"),
        ] {
            std::fs::write(&store.path, text).unwrap();
            let error = store.read().map(|_| ()).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        std::fs::write(&store.path, valid.replace("\"boot\":\"", "\"boot\":\"x")).unwrap();
        assert!(store.read().unwrap().0.is_empty());
    }
}
