//! The cost of the datastores alone, with the plugin's kind of requests.

use std::time::Instant;

use anyhow::{Context, Result};
use datastore::{Datastore, DatastoreConfig};
use libcalico::store::{Revision, Store, Write, WriteOp};

use crate::sample::Sample;

/// Length of a value: about a block with a dozen addresses.
const VALUE_LENGTH: usize = 1500;
const REPEATS: usize = 200;
const PATH: &str = "/calico/bench/value";

pub(crate) struct Costs {
    /// A read on an open connection.
    pub(crate) read: Sample,
    /// A compare-and-swap write on an open connection.
    pub(crate) write: Sample,
    /// Opening the datastore, and the first read.
    pub(crate) first_read: Sample,
}

pub(crate) fn measure(config: &DatastoreConfig) -> Result<Costs> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let (read, write) = on_open_connection(config).await?;
        let mut first_reads = Vec::new();
        // No other connection is open, as for a plugin that runs alone.
        for _ in 0..REPEATS {
            let begin = Instant::now();
            Datastore::open(config)?.scan(PATH).await?;
            first_reads.push(begin.elapsed());
        }
        Ok(Costs {
            read,
            write,
            first_read: first_reads.into_iter().collect(),
        })
    })
}

async fn on_open_connection(config: &DatastoreConfig) -> Result<(Sample, Sample)> {
    let store = Datastore::open(config)?;
    let value = format!("\"{}\"", "x".repeat(VALUE_LENGTH)).into_bytes();
    let mut revision = write(&store, WriteOp::Create(value.clone())).await?;
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for _ in 0..REPEATS {
        let begin = Instant::now();
        store.scan(PATH).await?;
        reads.push(begin.elapsed());
        let begin = Instant::now();
        revision = write(&store, WriteOp::Update(value.clone(), revision)).await?;
        writes.push(begin.elapsed());
    }
    write(&store, WriteOp::Delete(None)).await?;
    Ok((reads.into_iter().collect(), writes.into_iter().collect()))
}

async fn write(store: &Datastore, op: WriteOp) -> Result<Revision> {
    let write = Write {
        kind: "Bench",
        path: PATH.into(),
        key: "Bench(value)".into(),
        op,
    };
    store.write(&[write]).await?.pop().context("no revision")
}
