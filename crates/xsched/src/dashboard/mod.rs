//! The dashboard: a page in a browser that shows the devices and their tasks, and changes priorities, shares and the policy.
//!
//! ```text
//!   browser ──HTTP, token─────────────► xsched dashboard ──unix socket──► service
//!             state, once a second       │ api: requests of the page
//!                                        └ feed: reads status and events while a page is open
//! ```
//!
//! The process belongs to its user, so the service applies that user's rights to every request, and hides the names of other users'
//! programs. Requests for the state are answered from memory: however many arrive, the service receives the few of [`feed`].
//!
//! * [`access`]: which requests are allowed.
//! * [`api`]: the paths, and the state as JSON.
//! * [`browser`]: opens the page without showing the token to other users.
//! * [`feed`]: the thread that reads from the service.
//! * [`timeline`]: events in, spans of time out. Uses no clock and no socket.
//! * [`waits`]: the recent waits of a task.

mod access;
mod api;
pub(crate) mod browser;
mod feed;
mod timeline;
mod waits;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::http::{self, Token};
use api::Api;
use feed::Feed;

/// Where a dashboard listens.
pub(crate) enum Address {
    /// A port of the loopback address.
    Tcp(SocketAddr),
    /// A Unix socket, to which a port of another machine is forwarded.
    Unix(PathBuf),
}

/// The port that the printed command forwards to a Unix socket.
pub(crate) const FORWARDED_PORT: u16 = 8080;

/// A dashboard that serves on threads of this process.
pub(crate) struct Dashboard {
    /// Where it listens.
    pub(crate) address: Address,
    /// The secret that its requests must have.
    token: String,
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address {
            // It may be gone already, with its directory.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Dashboard {
    /// Starts it at a port of the loopback address, any free one if `port` is 0.
    pub(crate) fn start(port: u16) -> anyhow::Result<Self> {
        Self::serve(|api| Ok(Address::Tcp(http::serve_dashboard(port, move |request| api.respond(request))?)))
    }

    /// Starts it at a Unix socket.
    pub(crate) fn start_unix(path: &Path) -> anyhow::Result<Self> {
        Self::serve(|api| {
            http::serve_dashboard_unix(path, move |request| api.respond(request))?;
            Ok(Address::Unix(path.to_owned()))
        })
    }

    fn serve(listen: impl FnOnce(Api) -> anyhow::Result<Address>) -> anyhow::Result<Self> {
        let (token, text) = Token::random()?;
        let feed = Arc::new(Feed::default());
        let address = listen(Api::new(token, Arc::clone(&feed)))?;
        feed::start(feed)?;
        Ok(Self { address, token: text })
    }

    /// The address to open, after the port was forwarded if it listens at a Unix socket. Browsers do not send the part after `#`: the page reads the token from it.
    pub(crate) fn url(&self) -> String {
        let address = match &self.address {
            Address::Tcp(address) => *address,
            Address::Unix(_) => (Ipv4Addr::LOCALHOST, FORWARDED_PORT).into(),
        };
        format!("http://{address}/#token={}", self.token)
    }
}
