//! What a pod and its namespace, as the Kubernetes API has them, say about the pod's network.

use ipam_plugin::cni::IpamCall;
use libcalico::kubernetes::{Namespace, Pod};
use netconf::{CniError, Code};

/// Annotations that this build does not serve yet. A pod that has one is refused: it would get another network than it
/// asks for.
const NOT_SERVED: [&str; 3] =
    ["cni.projectcalico.org/ipAddrs", "cni.projectcalico.org/ipAddrsNoIpam", "cni.projectcalico.org/hwAddr"];
const POOLS4: &str = "cni.projectcalico.org/ipv4pools";
const POOLS6: &str = "cni.projectcalico.org/ipv6pools";

/// A pod and its namespace.
#[derive(Debug, Clone)]
pub struct Described {
    /// The pod.
    pub pod: Pod,
    /// Its namespace; without labels and annotations when it is gone.
    pub namespace: Namespace,
}

impl Described {
    /// Fails when the pod asks for what cannot be given.
    pub fn ensure_served(&self) -> Result<(), CniError> {
        let Some(annotation) = NOT_SERVED.into_iter().find(|name| self.pod.metadata.annotations.contains_key(*name))
        else {
            return Ok(());
        };
        let msg = format!("annotation {annotation} is not supported by this build");
        Err(CniError::new(Code::UNSUPPORTED_FIELD, msg).with_details(format!(
            "pod {}/{}: remove the annotation, or let upstream's plugin network this pod",
            self.pod.metadata.namespace, self.pod.metadata.name
        )))
    }

    /// Tells the allocator what pod and namespace say: pools, the pod's before the namespace's before the
    /// configuration's, and the labels that pools' selectors look at.
    pub fn tell(&self, call: &mut IpamCall) -> Result<(), CniError> {
        if let Some(pools) = self.pools(POOLS4)? {
            call.ipv4_pools = pools;
        }
        if let Some(pools) = self.pools(POOLS6)? {
            call.ipv6_pools = pools;
        }
        if let Some(pod) = &mut call.pod {
            pod.namespace.labels = self.namespace.metadata.labels.clone();
        }
        Ok(())
    }

    fn pools(&self, annotation: &str) -> Result<Option<Vec<String>>, CniError> {
        let both = [&self.pod.metadata.annotations, &self.namespace.metadata.annotations];
        let mut said = both.into_iter().filter_map(|annotations| annotations.get(annotation));
        let Some(text) = said.find(|text| !text.is_empty()) else { return Ok(None) };
        serde_json::from_str(text).map(Some).map_err(|error| {
            let msg = format!("failed to parse annotation {annotation}: {error}");
            CniError::new(Code::DECODE, msg)
                .with_details(format!("found {text}; it is a JSON list of pools, [\"pool-1\", \"10.65.0.0/16\"]"))
        })
    }
}
