//! Opens the page in the user's browser.
//!
//! Every user can read the command line of a process, so the address with the token is not an argument: the browser opens a file that only
//! its owner can read, which leads to the address.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, thread};

use anyhow::Context as _;

use crate::http::Token;

/// The program that opens a file in the user's browser.
const OPENER: &str = "xdg-open";

/// A file that leads to the page. Removed when dropped.
pub(crate) struct Redirect(PathBuf);

impl Drop for Redirect {
    fn drop(&mut self) {
        // It may be gone already, with the directory of the user's session.
        let _ = fs::remove_file(&self.0);
    }
}

/// Whether this user has a desktop on which a browser can open.
pub(crate) fn has_desktop() -> bool {
    ["WAYLAND_DISPLAY", "DISPLAY"].iter().any(|name| env::var_os(name).is_some_and(|value| !value.is_empty()))
}

/// Opens the address in a browser. The browser needs the file until it has loaded the page.
pub(crate) fn open(url: &str) -> anyhow::Result<Redirect> {
    let directory = env::var_os("XDG_RUNTIME_DIR").map_or_else(env::temp_dir, PathBuf::from);
    let file = write_redirect(&directory, url)?;
    let mut opener = Command::new(OPENER)
        .arg(&file.0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot run {OPENER}"))?;
    // Reaps it. Some openers return only when the browser is closed.
    thread::spawn(move || opener.wait());
    Ok(file)
}

fn write_redirect(directory: &Path, url: &str) -> anyhow::Result<Redirect> {
    let (_, name) = Token::random()?;
    let path = directory.join(format!("xsched-dashboard-{}.html", &name[..16]));
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let mut file = file.with_context(|| format!("cannot create {}", path.display()))?;
    let redirect = Redirect(path);
    let text = format!(
        "<!doctype html><meta charset=\"utf-8\"><title>XSched dashboard</title>\
         <meta http-equiv=\"refresh\" content=\"0; url={url}\"><a href=\"{url}\">XSched dashboard</a>\n"
    );
    file.write_all(text.as_bytes()).with_context(|| format!("cannot write {}", redirect.0.display()))?;
    Ok(redirect)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_the_owner_can_read_the_file_with_the_token_and_it_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let redirect = write_redirect(directory.path(), "http://127.0.0.1:1/#token=ab").unwrap();
        let path = redirect.0.clone();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(fs::read_to_string(&path).unwrap().contains("url=http://127.0.0.1:1/#token=ab\""));
        drop(redirect);
        assert!(!path.exists());
    }
}
