//! `-t`: tests that the datastore of the configuration on stdin is reachable and ready. Prints nothing on success.

use std::time::Duration;

use datastore::Datastore;
use ipam_plugin::{datastore_settings, process};
use libcalico::api::ClusterInformation;
use libcalico::store::Store;
use netconf::{CallError, CniError, Code, NetConf};

use crate::reads::cluster_key;

/// The time limit of the request to the datastore.
const DEADLINE: Duration = Duration::from_secs(2);

/// Tests the connection. Every failure has code 100, as in upstream.
pub fn run() -> Result<String, CallError> {
    test().map(|()| String::new()).map_err(|cause| {
        CniError::new(Code::CONNECTION_TEST, "data store connection failed").with_details(cause.to_string()).into()
    })
}

fn test() -> Result<(), CniError> {
    let raw =
        process::read_stdin().map_err(|error| CniError::new(Code::IO, format!("error reading from stdin: {error}")))?;
    let conf = NetConf::parse(&raw)?;
    let config = datastore_settings::from_conf(&conf, Some(DEADLINE))?;
    let store = Datastore::open(&config).map_err(|error| CniError::new(Code::INVALID_CONFIG, error.to_string()))?;
    let cluster = process::block_on(async {
        let read = store.get::<ClusterInformation>(&cluster_key()).await;
        read.map_err(|error| CniError::internal(format!("error getting ClusterInformation: {error}")))
    })?;
    match cluster.value.spec.datastore_ready {
        Some(true) => Ok(()),
        _ => Err(CniError::new(Code::TRY_AGAIN, "ClusterInformation default says that the datastore is not ready")),
    }
}
