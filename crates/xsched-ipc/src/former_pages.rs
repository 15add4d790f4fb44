//! The pages of schedulers that a process has left: all but the last [`KEPT_PAGES`] are replaced by zeros.
//!
//! ```text
//!   address   0x7000: zeros    0x8000: zeros    0x9000: kept    0xa000: kept    0xb000: in use
//! ```
//!
//! Every queue refers to the gates from which it has moved away, because its threads may still use them. So a process that
//! lives for months would keep the page of every service that was replaced meanwhile. The addresses have to stay mapped; the
//! memory behind them does not: [`Page::release_memory`].

use std::sync::{Arc, Mutex, Weak};

use crate::page::Page;
use crate::scheduled_process::lock;

/// How many pages are kept as they were left. A thread that is about to use a gate finds it retired there, and not free: it takes
/// a thread that does not run while the service is replaced three times to find zeros.
const KEPT_PAGES: usize = 2;

/// The pages that were left and not replaced by zeros yet, the latest at the end. The queues that were there hold them.
#[derive(Debug, Default)]
pub(crate) struct FormerPages(Mutex<Vec<Weak<Page>>>);

impl FormerPages {
    /// All queues have moved away from this page. Replaces earlier pages by zeros. A page with a thread inside is kept until a
    /// later call.
    pub(crate) fn add(&self, page: &Arc<Page>) {
        let mut pages = lock(&self.0);
        pages.retain(|page| page.strong_count() > 0);
        pages.push(Arc::downgrade(page));
        let earlier = pages.len().saturating_sub(KEPT_PAGES);
        let latest = pages.split_off(earlier);
        let is_kept = |page: &Arc<Page>| !page.is_abandoned() || page.release_memory().is_err();
        pages.retain(|page| page.upgrade().is_some_and(|page| is_kept(&page)));
        pages.extend(latest);
    }
}

#[cfg(test)]
mod tests;
