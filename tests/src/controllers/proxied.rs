//! A replica with its own user, whose requests pass through proxies of its own.

use anyhow::Result;

use super::{Controllers, ControllersCluster, Setup};
use crate::etcd::ENDPOINT;
use crate::kubernetes::{ApiServer, ServiceAccount};
use crate::proxy::Proxy;

/// kube-controllers, and the proxies between it and the servers.
#[derive(Debug)]
pub struct Proxied {
    /// Name of the user in the audit log.
    pub user: String,
    /// The process.
    pub controllers: Controllers,
    /// The proxy before the API server.
    pub api: Proxy,
    /// The proxy before etcd, if Calico's objects are in etcd.
    pub etcd: Option<Proxy>,
}

impl Proxied {
    /// Starts a replica called `name`, whose user may do everything. `more` extends its setup.
    pub fn start(
        cluster: &ControllersCluster<'_>,
        name: &str,
        more: impl FnOnce(Setup) -> Setup,
    ) -> Result<Proxied> {
        let account = Self::account(cluster.api, name)?;
        let api = cluster.api.proxy()?;
        let kubeconfig = cluster
            .api
            .kubeconfig_to(&api.endpoint(), name, &account.identity)?;
        let mut setup = cluster.setup_with(&kubeconfig).env("POD_NAME", name);
        let mut etcd = None;
        if cluster.group.is_none() {
            let proxy = Proxy::start(ENDPOINT.trim_start_matches("http://"))?;
            setup = setup.env("ETCD_ENDPOINTS", proxy.endpoint());
            etcd = Some(proxy);
        }
        Ok(Proxied {
            user: account.user,
            controllers: more(setup).start(cluster.host, name)?,
            api,
            etcd,
        })
    }

    /// Creates the account of the replica called `name`. Writes nothing if it exists.
    pub fn account(api: &ApiServer, name: &str) -> Result<ServiceAccount> {
        let account = api.service_account("kube-system", name)?;
        api.bind(&account, "cluster-admin")?;
        Ok(account)
    }

    /// Returns the proxies.
    pub fn proxies(&self) -> impl Iterator<Item = &Proxy> {
        [Some(&self.api), self.etcd.as_ref()].into_iter().flatten()
    }
}
