//! [`read_blocks`]: several blocks in one request.

use std::collections::BTreeSet;

use libcalico::ipam::Block;
use libcalico::net::Cidr;
use libcalico::store::{Entry, ReadBatch, Store, StoreError};

/// Those of the blocks that are there, in order; no request when none is wanted. One that cannot be read is an error.
pub(crate) async fn read_blocks<S: Store>(store: &S, wanted: BTreeSet<Cidr>) -> Result<Vec<Entry<Block>>, StoreError> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let mut batch = ReadBatch::new();
    let tickets: Vec<_> = wanted.iter().map(|cidr| batch.get::<Block>(cidr)).collect();
    let answers = store.read(&batch).await?;
    let mut blocks = Vec::new();
    for ticket in &tickets {
        blocks.extend(answers.get(ticket)?);
    }
    Ok(blocks)
}
