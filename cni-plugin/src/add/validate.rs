//! Rejects some ADDs that would fail later, before their first write (CNI-85, CNI-140).

use libcalico::api::WorkloadEndpoint;
use libcalico::conversion::{ProfileReach, default_profile};
use libcalico::validation;
use libcalico::workload::{Orchestrator, WorkloadIdentity};
use netconf::{Call, CniError, Code};

use crate::cni_error::naming_error;
use crate::endpoint;
use crate::interface::InterfaceConfig;

/// Checks parts of the configuration, the MTU, and the names of the endpoint and its profile.
pub(super) fn request(call: &Call, workload: &WorkloadIdentity) -> Result<(), CniError> {
    let conf = &call.conf;
    for key in conf.windows.ignored() {
        tracing::warn!(key, "ignoring a configuration key that has an effect on Windows only");
    }
    let is_container = matches!(workload.orchestrator, Orchestrator::Cni(_));
    if is_container && conf.feature_control.ip_addrs_no_ipam {
        return Err(CniError::new(Code::UNSUPPORTED_FIELD, "ip_addrs_no_ipam is not supported for this runtime")
            .with_details("$.feature_control.ip_addrs_no_ipam needs Kubernetes (K8S_POD_NAME in CNI_ARGS)"));
    }
    if conf.policy.policy_type.is_empty() {
        let profile = default_profile(&conf.name, ProfileReach::SameNetwork);
        validation::validate_profile(&profile).map_err(|error| {
            CniError::new(Code::INVALID_CONFIG, error.to_string())
                .with_details("$.name: the network's name becomes a label; 63 letters, digits and '-_.' at most")
        })?;
    }
    let config = InterfaceConfig { call, workload };
    config.mtu()?;
    let mut endpoint = workload.create(&[]).map_err(|error| naming_error(&error))?;
    endpoint.spec.interface_name = config.host_ifname();
    endpoint::validate(&endpoint)
}

/// Rejects a second interface of a container: an endpoint describes one interface, so the result would name an
/// interface that does not exist (CNI-90).
pub(super) fn ensure_same_interface(call: &Call, existing: &WorkloadEndpoint) -> Result<(), CniError> {
    let (id, requested, first) = (&call.container_id, &call.ifname, &existing.spec.endpoint);
    if requested == first {
        return Ok(());
    }
    let msg = format!("container {id} already has interface {first} and cannot get a second interface {requested}");
    Err(CniError::new(Code::INVALID_ENVIRONMENT, msg).with_details(
        "CNI_IFNAME: Calico creates one interface per container; call DEL for the first, or use another plugin for \
         the second",
    ))
}
