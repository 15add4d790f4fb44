//! Listings: the replies to [`Request::Status`] and [`Request::Metrics`], which grow with the number of tasks and queues.
//!
//! ```text
//!   request ──► awaits a snapshot ──► snapshot for all that await it ──► one packet per turn; users take turns
//!                                                 └─ metrics ─► renderer ─┘
//! ```
//!
//! Nothing is received from a session until its listing is complete. The session holds a position in the listing and no packets:
//! there is one snapshot, however many clients do not read. Each round of the service spends at most
//! [`LISTING_TIME_PER_ROUND`] on listings, and the next snapshot waits until the listings have used at most a tenth of the time
//! since the last one. A listing is never older than its request. Metrics are rendered by another thread
//! ([`metrics_renderer`](super::metrics_renderer)), once for all clients that see the same, and for [`MAX_METRICS_VIEWS`] groups
//! of such clients at the same time.
//!
//! [`Request::Status`]: crate::protocol::Request::Status
//! [`Request::Metrics`]: crate::protocol::Request::Metrics

use std::collections::HashMap;
use std::sync::Arc;

use rustix::event::epoll::EventFlags;
use xsched_core::Nanos;

use super::Service;
use super::grants::Confinement;
use super::metrics_renderer::{MetricsInput, SharedPacket};
use super::peer::Peer;
use super::session::Session;
use super::status::{Position, Snapshot};
use super::turns::Turns;

/// How long listings are sent before other events are handled.
const LISTING_TIME_PER_ROUND: Nanos = Nanos::from_micros(100);
/// The least ratio of the time between two snapshots to the time that the listings of the first have used.
const PAUSE_FACTOR: u64 = 10;
/// The longest pause between two snapshots.
const MAX_PAUSE: Nanos = Nanos::from_millis(500);

/// The most views whose metrics exist at the same time. Each has megabytes if there are thousands of tasks.
const MAX_METRICS_VIEWS: usize = 4;

/// The kinds of listings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListingKind {
    Status,
    Metrics,
    Grants,
}

/// A listing that a session has requested and has not received completely.
#[derive(Clone, Debug)]
pub(super) struct PendingListing {
    kind: ListingKind,
    /// The peer may see the names of other users' processes.
    sees_all: bool,
    position: Position,
    /// The name of the last grant that was sent.
    last_grant: String,
    /// The socket is full. Epoll reports when it has room.
    pub(super) is_blocked: bool,
}

/// Which peers see the same metrics and events: those that see all names, or what one peer sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum MetricsView {
    All,
    User(Viewer),
}

/// What the processes that a peer sees depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Viewer {
    uid: u32,
    confinement: Confinement,
    has_process: bool,
}

impl Viewer {
    fn of(peer: Peer) -> Self {
        Self { uid: peer.uid, confinement: peer.confinement, has_process: peer.has_process() }
    }
}

impl MetricsView {
    /// What a peer sees.
    pub(super) fn of(peer: Peer, sees_all: bool) -> Self {
        if sees_all { Self::All } else { Self::User(Viewer::of(peer)) }
    }

    /// Whether the view includes the names of the processes of a peer.
    pub(super) fn includes(self, owner: Peer) -> bool {
        match self {
            Self::All => true,
            Self::User(viewer) => owner.is_visible_to(viewer.uid, viewer.confinement, viewer.has_process),
        }
    }
}

/// The metrics of the snapshot for one view.
enum Metrics {
    /// They are being rendered; these sessions wait for them.
    Awaited(Vec<(u32, u64)>),
    /// They are these packets.
    Rendered(Arc<[SharedPacket]>),
}

/// The snapshot, and the sessions that wait for listings, by their tokens.
#[derive(Default)]
pub(super) struct Listings {
    pub(super) snapshot: Snapshot,
    taken_at: Nanos,
    /// The time that listings have used since then.
    used: Nanos,
    /// The metrics of the snapshot, for each group of peers that see the same.
    metrics: HashMap<MetricsView, Metrics>,
    /// The sessions whose metrics are rendered when those of other views were sent.
    awaiting_view: Vec<(u32, u64)>,
    /// The sessions whose listing begins with the next snapshot.
    awaiting_snapshot: Vec<(u32, u64)>,
    /// The sessions that the next packets can be sent to.
    sending: Turns<u64>,
}

/// What happens with a session that requests metrics.
enum MetricsState {
    /// It receives these packets.
    Rendered(Arc<[SharedPacket]>),
    /// It waits.
    Waits,
    /// It waits, and the metrics have to be rendered.
    ToRender,
}

impl Listings {
    /// When the next packet can be sent; none if no session waits for one.
    pub(super) fn due(&self) -> Option<Nanos> {
        if !self.sending.is_empty() || self.are_views_sent() {
            return Some(Nanos::ZERO);
        }
        (!self.awaiting_snapshot.is_empty() && !self.is_rendering()).then(|| self.next_snapshot_due())
    }

    /// Whether no session waits for the metrics that exist, and some wait for others.
    fn are_views_sent(&self) -> bool {
        !self.awaiting_view.is_empty() && self.sending.is_empty() && !self.is_rendering()
    }

    /// Removes the metrics, and continues the listings of the sessions that wait for others.
    fn remove_metrics(&mut self) {
        self.metrics.clear();
        for (uid, token) in std::mem::take(&mut self.awaiting_view) {
            self.sending.push(uid, token);
        }
    }

    /// The metrics of a view, or the session waits for them.
    fn metrics_of(&mut self, view: MetricsView, session: (u32, u64)) -> MetricsState {
        let has_room = self.metrics.len() < MAX_METRICS_VIEWS;
        match self.metrics.get_mut(&view) {
            Some(Metrics::Rendered(packets)) => MetricsState::Rendered(Arc::clone(packets)),
            Some(Metrics::Awaited(sessions)) => {
                sessions.push(session);
                MetricsState::Waits
            }
            None if !has_room => {
                self.awaiting_view.push(session);
                MetricsState::Waits
            }
            None => {
                self.metrics.insert(view, Metrics::Awaited(vec![session]));
                MetricsState::ToRender
            }
        }
    }

    /// The metrics of a view were rendered: continues the listings of the sessions that wait for them.
    fn store_metrics(&mut self, view: MetricsView, packets: Arc<[SharedPacket]>) {
        if let Some(Metrics::Awaited(sessions)) = self.metrics.insert(view, Metrics::Rendered(packets)) {
            for (uid, token) in sessions {
                self.sending.push(uid, token);
            }
        }
    }

    /// Whether metrics of the snapshot are being rendered. Then the next snapshot waits: the sessions that wait for the metrics
    /// would wait again.
    fn is_rendering(&self) -> bool {
        self.metrics.values().any(|metrics| matches!(metrics, Metrics::Awaited(_)))
    }

    fn next_snapshot_due(&self) -> Nanos {
        self.taken_at + Nanos(self.used.0.saturating_mul(PAUSE_FACTOR)).min(MAX_PAUSE)
    }
}

impl Service {
    /// Has a session wait for a listing.
    pub(super) fn request_listing(&mut self, index: usize, kind: ListingKind) {
        let Some(peer) = self.sessions.get(index).map(Session::caller) else { return };
        let sees_all = match kind {
            ListingKind::Grants => self.may_give_grants(peer),
            ListingKind::Status | ListingKind::Metrics => self.is_administrator(peer),
        };
        let token = self.sessions.socket_token(index);
        if let Some(session) = self.sessions.get_mut(index) {
            session.listing = Some(PendingListing {
                kind,
                sees_all,
                position: Position::default(),
                last_grant: String::new(),
                is_blocked: false,
            });
            self.listings.awaiting_snapshot.push((peer.uid, token));
        }
    }

    /// The socket of a session has room for the next packet of its listing.
    pub(super) fn resume_listing(&mut self, index: usize) {
        let token = self.sessions.socket_token(index);
        let Some(session) = self.sessions.get_mut(index) else { return };
        let uid = session.caller().uid;
        if let Some(listing) = &mut session.listing {
            listing.is_blocked = false;
            session.blocked_since = None;
            self.listings.sending.push(uid, token);
            self.watch(index, EventFlags::empty());
        }
    }

    /// Takes a snapshot if one is due, and sends packets for at most [`LISTING_TIME_PER_ROUND`], but at least one.
    pub(super) fn send_listings(&mut self) {
        let began = Nanos::now();
        if self.listings.due().is_none_or(|due| due > began) {
            return;
        }
        if self.listings.are_views_sent() {
            self.listings.remove_metrics();
        }
        let is_snapshot_due = !self.listings.awaiting_snapshot.is_empty() && !self.listings.is_rendering();
        if is_snapshot_due && self.listings.next_snapshot_due() <= began {
            self.take_snapshot(began);
            self.listings.taken_at = began;
            self.listings.used = Nanos::ZERO;
            self.listings.remove_metrics();
            for (uid, token) in std::mem::take(&mut self.listings.awaiting_snapshot) {
                self.listings.sending.push(uid, token);
            }
        }
        while let Some((uid, token)) = self.listings.sending.next() {
            if let Some(index) = self.sessions.index(token)
                && self.send_next_packet(index)
            {
                self.listings.sending.push(uid, token);
            }
            if Nanos::now() - began >= LISTING_TIME_PER_ROUND {
                break;
            }
        }
        self.listings.used += Nanos::now() - began;
    }

    /// Sends the next packet of a session's listing. Returns whether another one can be sent.
    fn send_next_packet(&mut self, index: usize) -> bool {
        let Some(session) = self.sessions.get(index) else { return false };
        let (peer, Some(listing)) = (session.caller(), session.listing.clone()) else { return false };
        if listing.kind == ListingKind::Metrics {
            let Some(packets) = self.metrics(index, peer, listing.sees_all) else { return false };
            self.end_listing(index);
            for packet in packets.iter() {
                self.send_or_queue(index, packet);
            }
            return false;
        }
        let (packet, next) = self.next_packet(peer, &listing);
        match (self.send_now(index, &packet), next) {
            (Ok(true), Some(next)) => {
                if let Some(session) = self.sessions.get_mut(index) {
                    session.listing = Some(next);
                }
                return true;
            }
            (Ok(true), None) => self.end_listing(index),
            // The service has to receive the notifications of a scheduled process: it loses the rest.
            (Ok(false), _) if self.is_scheduled_process(index) => self.end_listing(index),
            (Ok(false), _) => {
                if let Some(session) = self.sessions.get_mut(index) {
                    session.listing = Some(PendingListing { is_blocked: true, ..listing });
                }
                self.block(index);
            }
            (Err(_), _) => self.close(index),
        }
        false
    }

    /// The next packet of a listing, and the listing after it if there are more.
    fn next_packet(&self, peer: Peer, listing: &PendingListing) -> (Vec<u8>, Option<PendingListing>) {
        if listing.kind == ListingKind::Grants {
            let (packet, next) = self.grants_packet(peer, listing.sees_all, &listing.last_grant);
            (packet, next.map(|last_grant| PendingListing { last_grant, ..listing.clone() }))
        } else {
            let (packet, next) = self.status_packet(peer, listing.sees_all, listing.position);
            (packet, next.map(|position| PendingListing { position, ..listing.clone() }))
        }
    }

    /// The metrics of the snapshot as the peer may see them. If they are not rendered yet, the session waits for them.
    fn metrics(&mut self, index: usize, peer: Peer, sees_all: bool) -> Option<Arc<[SharedPacket]>> {
        let view = MetricsView::of(peer, sees_all);
        let session = (peer.uid, self.sessions.socket_token(index));
        match self.listings.metrics_of(view, session) {
            MetricsState::Rendered(packets) => return Some(packets),
            MetricsState::Waits => {}
            MetricsState::ToRender => self.metrics_renderer.request(MetricsInput {
                view,
                status: self.listings.snapshot.shared_status(),
                names: self.visible_names(view),
                counters: Arc::clone(&self.counters),
            }),
        }
        None
    }

    /// Continues the listings of the sessions that wait for metrics.
    pub(super) fn store_rendered_metrics(&mut self) {
        for rendered in self.metrics_renderer.take_results() {
            self.listings.used += rendered.took;
            self.listings.store_metrics(rendered.view, rendered.packets);
        }
    }

    /// The listing of a session is complete: the next request can be received.
    fn end_listing(&mut self, index: usize) {
        if let Some(session) = self.sessions.get_mut(index) {
            session.listing = None;
        }
        self.watch(index, EventFlags::IN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(uid: u32) -> MetricsView {
        MetricsView::User(Viewer { uid, confinement: Confinement::None, has_process: true })
    }

    #[test]
    fn number_of_views_whose_metrics_exist_is_limited_and_every_view_has_its_turn() {
        let mut listings = Listings::default();
        let mut waiting: Vec<u32> = (0..10).collect();
        let mut received = Vec::new();
        while received.len() < 10 {
            let rendered: Vec<_> = waiting
                .drain(..)
                .filter(|&uid| {
                    let state = listings.metrics_of(view(uid), (uid, uid.into()));
                    matches!(state, MetricsState::ToRender)
                })
                .collect();
            assert!((1..=MAX_METRICS_VIEWS).contains(&rendered.len()), "{rendered:?}");
            for uid in rendered {
                assert_eq!(listings.due(), None, "other views are being rendered");
                listings.store_metrics(view(uid), Arc::new([]));
                let (uid, token) = listings.sending.next().unwrap();
                let state = listings.metrics_of(view(uid), (uid, token));
                assert!(matches!(state, MetricsState::Rendered(_)));
                received.push(uid);
            }
            if received.len() < 10 {
                assert_eq!(listings.due(), Some(Nanos::ZERO));
                listings.remove_metrics();
                waiting.extend(std::iter::from_fn(|| listings.sending.next()).map(|(uid, _)| uid));
            }
        }
        received.sort_unstable();
        assert_eq!(received, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn next_snapshot_waits_until_listings_have_used_a_tenth_of_the_time() {
        let mut listings = Listings { taken_at: Nanos::from_secs(1), ..Listings::default() };
        assert_eq!(listings.due(), None);
        listings.awaiting_snapshot.push((7, 1));
        assert_eq!(listings.due(), Some(Nanos::from_secs(1)), "an unused service replies at once");
        listings.used = Nanos::from_millis(3);
        assert_eq!(listings.due(), Some(Nanos::from_secs(1) + Nanos::from_millis(30)));
        listings.used = Nanos::from_secs(3);
        assert_eq!(listings.due(), Some(Nanos::from_secs(1) + MAX_PAUSE));
        listings.sending.push(7, 2);
        assert_eq!(listings.due(), Some(Nanos::ZERO), "the snapshot exists");
    }
}
