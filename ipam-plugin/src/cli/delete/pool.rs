//! Deletes a pool: disables the pool, releases its blocks, then deletes the object (DS-48).

use std::time::Duration;

use libcalico::api::{IpPool, ObjectKey};
use libcalico::ipam::Block;
use libcalico::net::Cidr;
use libcalico::store::{Entry, Store, StoreError};

use crate::affinity::release_pool_affinities;
use crate::cli::error::CliError;
use crate::cli::session::Session;
use crate::cli::store_object::until_won;
use crate::clock::SystemClock;

/// Time for allocations in progress after the pool was disabled, as in upstream.
const GRACE: Duration = Duration::from_millis(500);

pub(super) async fn delete(name: &str, session: &mut Session<'_>) -> Result<(), CliError> {
    let store = session.store;
    let key = ObjectKey::global(name);
    let pool = until_won(&format!("IPPool {name}"), async || disable(session, &key).await).await?;
    // A pool without a valid range has no blocks.
    if let Ok(range) = pool.value.spec.range() {
        tokio::time::sleep(GRACE).await;
        give_up_blocks(name, &range, session).await?;
    }
    Ok(store.delete::<IpPool>(&key, None).await?)
}

async fn disable(session: &Session<'_>, key: &ObjectKey) -> Result<Entry<IpPool>, CliError> {
    let mut pool = match session.store.get::<IpPool>(key).await {
        // A retry cannot win this race.
        Err(error @ StoreError::NotFound { .. }) => return Err(CliError::Missing(error)),
        found => found?,
    };
    if !pool.value.spec.disabled {
        pool.value.spec.disabled = true;
        pool.revision = session.store.update(key, &pool.value, &pool.revision).await?;
    }
    Ok(pool)
}

async fn give_up_blocks(name: &str, range: &Cidr, session: &mut Session<'_>) -> Result<(), CliError> {
    let surrendered = release_pool_affinities(session.store, &SystemClock::start(), range).await?;
    if let Some((block, cause)) = surrendered.kept.into_iter().next() {
        return Err(CliError::BlockKept { of: format!("IPPool {name}"), block, cause: Box::new(cause) });
    }
    let blocks = session.store.list::<Block>(&Some(range.version())).await?;
    let inside = blocks.iter().filter(|block| range.covers(&block.key));
    let held: usize = inside.map(|block| block.value.allocated().count()).sum();
    session.notice(format_args!("{} blocks of IPPool {name} given up", surrendered.released.len()));
    if held > 0 {
        session.notice(format_args!("note: {held} addresses of it stay in use until their pods go"));
    }
    Ok(())
}
