//! Measurements on the embedded datastore and etcd, which both store key-value pairs, on one host.

use anyhow::Result;
use integration_tests::etcd::Etcd;
use integration_tests::namespaces::Host;

use crate::backend::Backend;
use crate::pods::{self, Crowd, Details, OneAfterAnother};
use crate::stores::{self, Costs};
use crate::{PODS, Paths, etcd_on_disk};

/// The measurements. The first element of each array is the embedded datastore's.
pub(crate) struct Measured {
    /// The costs of requests to the datastores alone, without the plugin.
    pub(crate) costs: [Costs; 2],
    /// The series of the floor, of the ADDs and of the DELs.
    pub(crate) series: OneAfterAnother<2>,
    pub(crate) details: [Details; 2],
    pub(crate) crowds: [Crowd; 2],
}

pub(crate) fn measure(host: &Host, paths: &Paths) -> Result<Measured> {
    etcd_on_disk(host, &paths.work.join("etcd"))?;
    let _etcd = Etcd::start(host)?;
    let (local, etcd) = (Backend::local(paths)?, Backend::etcd(paths)?);

    eprintln!("datastores alone");
    let costs = [
        stores::measure(&local.datastore)?,
        stores::measure(&etcd.datastore)?,
    ];
    eprintln!("what one ADD does");
    let details = [pods::details(host, &local)?, pods::details(host, &etcd)?];
    eprintln!("{PODS} pods one after another");
    let series = pods::one_after_another(host, &paths.floor, [&local, &etcd], || Ok(()))?;
    eprintln!("{PODS} pods at once");
    let crowds = [pods::at_once(host, &local)?, pods::at_once(host, &etcd)?];
    Ok(Measured {
        costs,
        series,
        details,
        crowds,
    })
}
