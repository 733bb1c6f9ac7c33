//! STATUS: could an ADD be served now (CNI-214)? Cheap: runtimes ask every few seconds.

use std::path::Path;

use netconf::{CniError, Code};

use crate::session::{Question, Session};
use crate::{ipam, mtu, owed};

/// Succeeds only if an ADD could be served. Every failure has code 50.
pub async fn status(session: &mut Session) -> Result<(), CniError> {
    let interface = &session.call.conf.interface;
    mtu::effective(interface.mtu, interface.require_mtu_file, Path::new(mtu::MTU_FILE))
        .map_err(|error| not_available(&CniError::internal(error.to_string())))?;
    let known = session.read(Question::Cluster).await.map_err(|error| not_available(&error))?;
    known.ensure_ready().map_err(|error| not_available(&error))?;
    ipam::status(session).await.map_err(|error| not_available(&error))?;
    owed::settle_some(session).await;
    Ok(())
}

/// The same failure with the code that says what it means for a runtime.
pub fn not_available(error: &CniError) -> CniError {
    CniError::new(Code::NOT_AVAILABLE, error.msg.clone()).with_details(error.details.clone())
}
