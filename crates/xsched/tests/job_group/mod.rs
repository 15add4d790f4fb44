//! The processes of a job: a control group, and another user.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use xsched_ipc::protocol::{Grant, Reply, Request, TaskStatus};

use crate::environment::{TestEnvironment, wait_until};
use crate::skipped::record_skipped;
use crate::test_program::TestProgram;

/// A user without an account, whose limits apply.
pub(crate) const OTHER_USER: u32 = 54_321;
const XSCHED: &str = env!("CARGO_BIN_EXE_xsched");
/// Rounds of one command of 2 ms, without an end.
const ENDLESS: [&str; 4] = ["work", "1000000", "1", "2000"];

/// A control group of version 2, removed when dropped.
pub(crate) struct JobGroup {
    directory: PathBuf,
    path: String,
}

impl JobGroup {
    /// None, and the test is skipped, if that is not possible.
    pub(crate) fn create() -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("xsched-grant-{}-{number}", std::process::id());
        let mounts = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
        let mount = mounts.into_iter().find(|mount| mount.join("cgroup.procs").exists());
        let group = mount.map(|mount| Self { directory: mount.join(&name), path: format!("/{name}") });
        let group = group.filter(|group| std::fs::create_dir(&group.directory).is_ok());
        if group.is_none() {
            record_skipped("no control group of version 2 can be created (it needs root)");
        }
        group
    }

    /// Its path as in `/proc/PID/cgroup`.
    pub(crate) fn path(&self) -> String {
        self.path.clone()
    }

    /// Creates a group below this one.
    pub(crate) fn below(&self, name: &str) -> Self {
        let group = Self { directory: self.directory.join(name), path: format!("{}/{name}", self.path) };
        group.create_again();
        group
    }

    /// Moves a process into the group.
    pub(crate) fn add(&self, pid: u32) {
        std::fs::write(self.directory.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Removes the group, whose processes have exited.
    pub(crate) fn remove(&self) {
        wait_until("the control group is empty", || std::fs::remove_dir(&self.directory).is_ok());
    }

    pub(crate) fn create_again(&self) {
        std::fs::create_dir(&self.directory).unwrap();
    }
}

impl Drop for JobGroup {
    fn drop(&mut self) {
        let parent = self.directory.parent().unwrap().join("cgroup.procs");
        for pid in std::fs::read_to_string(self.directory.join("cgroup.procs")).unwrap_or_default().lines() {
            let _ = std::fs::write(&parent, pid);
        }
        let _ = std::fs::remove_dir(&self.directory);
    }
}

/// A service and jobs.
pub(crate) struct Cluster {
    pub(crate) env: TestEnvironment,
    /// Every user can write there.
    files: tempfile::TempDir,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        Self::with_options(&[])
    }

    /// With a service that has these options.
    pub(crate) fn with_options(options: &[&str]) -> Self {
        let mut env = TestEnvironment::without_service();
        let files = tempfile::tempdir().unwrap();
        let set_mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        set_mode(env.socket().parent().unwrap(), 0o755);
        set_mode(files.path(), 0o777);
        env.start_service_with(options);
        Self { env, files }
    }

    /// A command in a control group, of a user.
    pub(crate) fn command(&self, group: Option<&JobGroup>, uid: u32, arguments: &[&str]) -> Command {
        let user = uid.to_string();
        let change_user = ["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"];
        let procs = group.map(|group| group.directory().join("cgroup.procs").display().to_string());
        let enter = ["sh", "-c", "echo $$ > \"$0\" && exec \"$@\"", procs.as_deref().unwrap_or_default()];
        let mut all: Vec<&str> = if group.is_some() { enter.to_vec() } else { Vec::new() };
        if uid != 0 {
            all.extend(change_user);
        }
        all.extend(arguments);
        let mut command = self.env.direct(&all);
        // A file of the device for each user. The device ID is the same.
        command.env("XSIM_DEVICE", self.files.path().join(user)).current_dir("/");
        command
    }

    /// Runs `xsched` with these arguments. Returns its output.
    pub(crate) fn xsched(&self, group: Option<&JobGroup>, uid: u32, arguments: &[&str]) -> Output {
        self.command(group, uid, &[&[XSCHED], arguments].concat()).output().unwrap()
    }

    /// The program without an end under `xsched run` with these options and with a variable.
    pub(crate) fn start_with(
        &self,
        group: Option<&JobGroup>,
        uid: u32,
        options: &[&str],
        token: Option<&str>,
    ) -> TestProgram {
        let mut command = self.command(group, uid, &[&[XSCHED, "run"], options, &["--"], &ENDLESS].concat());
        command.envs(token.map(|token| ("XSCHED_GRANT", token)));
        let program = TestProgram::spawn(command);
        wait_until("the program is scheduled", || self.find(program.pid()).is_some());
        program
    }

    pub(crate) fn start(&self, group: Option<&JobGroup>, uid: u32, options: &[&str]) -> TestProgram {
        self.start_with(group, uid, options, None)
    }

    fn find(&self, pid: u32) -> Option<TaskStatus> {
        self.env.status().tasks.into_iter().find(|task| task.pid == pid)
    }

    /// The task of a program.
    pub(crate) fn task(&self, program: &TestProgram) -> TaskStatus {
        self.find(program.pid()).expect("the program is scheduled")
    }

    /// Gives a grant as an administrator.
    pub(crate) fn give(&self, grant: Grant) {
        assert_eq!(self.env.request(&Request::Grant(grant)), Reply::Done);
    }

    /// The names of the grants.
    pub(crate) fn grants(&self) -> Vec<String> {
        match self.env.request(&Request::Grants) {
            Reply::Grants { grants, .. } => grants.into_iter().map(|status| status.grant.name).collect(),
            reply => panic!("the service replied {reply:?}"),
        }
    }
}

/// A grant for a control group.
pub(crate) fn grant(name: &str, group: &JobGroup) -> Grant {
    Grant {
        name: name.to_owned(),
        cgroup: Some(group.path()),
        priority: Some(100),
        share: Some(40),
        ..Grant::default()
    }
}

/// Why a command failed: one line.
pub(crate) fn error_line(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.lines().count() == 1, "{output:?}");
    text
}
