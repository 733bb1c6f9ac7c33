//! Measurements on the Kubernetes API server, on a separate host.

use anyhow::Result;
use integration_tests::kubernetes::{Kubernetes, program};
use integration_tests::namespaces::Host;

use crate::backend::Backend;
use crate::pods::{self, Crowd, Details, OneAfterAnother};
use crate::requests::{Probe, Requests};
use crate::{PODS, Paths, etcd_on_disk};

pub(crate) struct Measured {
    /// Requests alone, sent by the plugin's own client.
    pub(crate) requests: Requests,
    pub(crate) series: OneAfterAnother<1>,
    pub(crate) details: Details,
    pub(crate) crowd: Crowd,
}

/// Returns the reason why there is no API server to measure; `None` if there is one.
pub(crate) fn missing() -> Option<String> {
    program("kube-apiserver")
        .err()
        .map(|error| error.to_string())
}

pub(crate) fn measure(host: &Host, paths: &Paths) -> Result<Measured> {
    etcd_on_disk(host, &paths.work.join("etcd-of-kubernetes"))?;
    eprintln!("kube-apiserver");
    let servers = Kubernetes::start(host)?;
    let backend = Backend::kubernetes(paths, &servers.api)?;

    eprintln!("what one ADD does");
    let details = pods::details(host, &backend)?;
    eprintln!("{PODS} pods one after another");
    let mut probe = Probe::new(host, &backend)?;
    let series = pods::one_after_another(host, &paths.floor, [&backend], || probe.turn())?;
    eprintln!("{PODS} pods at once");
    let crowd = pods::at_once(host, &backend)?;
    Ok(Measured {
        requests: probe.requests(),
        series,
        details,
        crowd,
    })
}
