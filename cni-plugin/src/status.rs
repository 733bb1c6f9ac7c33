//! STATUS: could an ADD be served now (CNI-214)? Cheap: runtimes ask every few seconds.

use std::path::Path;
use std::time::Duration;

use ipam_plugin::{busy_server, own_node};
use netconf::{CniError, Code};
use tokio::time::{Instant, timeout_at};

use crate::session::{Question, Session};
use crate::{ipam, mtu, owed};

/// All that one STATUS may take: a datastore that is slower than this cannot serve an ADD.
pub const DEADLINE: Duration = Duration::from_secs(2);

/// Succeeds only if an ADD could be served, which waits for an API server that is busy. Every failure has code 50.
pub async fn status(session: &mut Session) -> Result<(), CniError> {
    let until = Instant::now() + DEADLINE;
    let interface = &session.call.conf.interface;
    mtu::effective(interface.mtu, interface.require_mtu_file, Path::new(mtu::MTU_FILE))
        .map_err(|error| not_available(&CniError::internal(error.to_string())))?;
    let call = ipam::call_of(session);
    let question = call.as_ref().map_or(Question::Cluster, Question::Allocator);
    let known = timeout_at(until, session.read(question)).await.unwrap_or_else(|_| Err(too_slow(session)));
    let ready = known.and_then(|mut known| {
        known.ensure_ready()?;
        if let Some(prelude) = &mut known.assign {
            own_node::assume(&session.store, &session.facts.node, prelude);
        }
        ipam::status(session, call.as_ref(), known.assign.as_ref())
    });
    busy_server::status(ready, &session.store, &session.api).map_err(|error| not_available(&error))?;
    // What is not paid in the time that is left waits for the next call.
    let _ = timeout_at(until, owed::settle_some(session)).await;
    Ok(())
}

fn too_slow(session: &Session) -> CniError {
    CniError::internal(format!("datastore {} took more than {} s", session.datastore_name(), DEADLINE.as_secs()))
}

/// The same failure with the code that says what it means for a runtime.
pub fn not_available(error: &CniError) -> CniError {
    CniError::new(Code::NOT_AVAILABLE, error.msg.clone()).with_details(error.details.clone())
}
