//! The body of a watch.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::objects::{Objects, bookmark};

const BOOKMARKS: Duration = Duration::from_secs(30);

/// Sends the changes of a collection after `revision`, and bookmarks, for `lifetime` or until the
/// client disconnects.
pub(super) async fn watch(
    objects: Arc<Objects>,
    collection: String,
    revision: u64,
    lifetime: Duration,
    lines: mpsc::Sender<Bytes>,
) {
    let end = Instant::now() + lifetime;
    let mut changes = objects.changes();
    let mut position = objects.since(&collection, revision);
    let mut next_bookmark = Instant::now() + BOOKMARKS;
    while Instant::now() < end {
        changes.mark_unchanged();
        let (news, complete) = objects.log(&collection, position);
        position += news.len();
        for line in news {
            if lines.send(line).await.is_err() {
                return;
            }
        }
        if Instant::now() >= next_bookmark {
            next_bookmark = Instant::now() + BOOKMARKS;
            if lines.send(bookmark(complete)).await.is_err() {
                return;
            }
        }
        tokio::select! {
            _ = timeout_at(next_bookmark.min(end), changes.changed()) => {}
            () = lines.closed() => return,
        }
    }
}
