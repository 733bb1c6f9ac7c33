//! The names of a pod's interface: a pod has one interface in a network, and each ADD with a
//! further CNI_IFNAME returns the result of the first ADD (CNI-90). The node records these names,
//! because a DEL of one must change nothing.

use allocation::journal::{InterfaceName, InterfaceRole};
use libcalico::store::{EndpointForm, Store};
use netconf::{CniError, CniResult, Code};

use crate::cni_error::journal_error;
use crate::context::Context;
use crate::endpoint::POD_INTERFACE;
use crate::interface::InterfaceConfig;
use crate::world::World;

fn name<'c>(cx: &'c Context<impl World>, ifname: &'c str) -> InterfaceName<'c> {
    InterfaceName {
        network: &cx.call.conf.name,
        container_id: &cx.call.container_id,
        ifname,
    }
}

/// Returns true if names are recorded: a gRPC dataplane decides itself, and a plain container has
/// no further name.
fn are_recorded(config: InterfaceConfig<'_>) -> bool {
    config.is_of_pod() && config.grpc_socket().is_none()
}

/// Returns true if CNI_IFNAME is a further name, whose ADD created no interface: the node has
/// recorded the name, or prevResult is the result of the ADD of another name. Fails if the record
/// cannot be read and prevResult does not decide, because the DEL of a further name would cut the
/// connection of the pod.
pub fn is_further(cx: &Context<impl World>) -> Result<bool, CniError> {
    let (call, config) = (&cx.call, cx.interface());
    if !are_recorded(config) {
        return Ok(false);
    }
    let names_other = |previous: &CniResult| {
        attached_ifname(previous, config, &config.host_ifname()) != call.ifname
    };
    // A DEL must not fail on its prevResult.
    if call
        .conf
        .read_prev_result(call.version)
        .ok()
        .flatten()
        .as_ref()
        .is_some_and(names_other)
    {
        return Ok(true);
    }
    cx.journal
        .has_interface(InterfaceRole::Second, name(cx, &call.ifname))
        .map_err(|error| {
            let text = format!(
                "{error}: it is unknown whether {} is a further name of the pod's interface",
                call.ifname
            );
            CniError::new(Code::TRY_AGAIN, text)
        })
}

/// Returns true if an earlier ADD of the container had another CNI_IFNAME. `first` is the present
/// name of the interface of that ADD; anybody in the pod can change it. `recorded` is the name in
/// the endpoint.
pub fn has_other_first(
    cx: &Context<impl World>,
    first: &str,
    recorded: &str,
) -> Result<bool, CniError> {
    let ifname = &cx.call.ifname;
    match cx.store.endpoint_form() {
        EndpointForm::Object => return Ok(recorded != ifname),
        EndpointForm::PodAnnotations => {}
    }
    let is_first = |ifname| {
        cx.journal
            .has_interface(InterfaceRole::First, name(cx, ifname))
            .map_err(journal_error)
    };
    // Every endpoint has the name of eth0, so the node records each other first name.
    if ifname == POD_INTERFACE {
        is_first(first)
    } else {
        Ok(!is_first(ifname)?)
    }
}

/// Records CNI_IFNAME as a further name, so that its DEL changes nothing.
pub fn record_further(cx: &Context<impl World>) -> Result<(), CniError> {
    cx.journal
        .record_interface(InterfaceRole::Second, name(cx, &cx.call.ifname))
        .map_err(journal_error)
}

/// Records that CNI_IFNAME is the name with which this ADD creates the interface. Fails if the node
/// would keep the name as a further one, because then no DEL would release the addresses.
pub fn record_first(cx: &Context<impl World>) -> Result<(), CniError> {
    let name = name(cx, &cx.call.ifname);
    if !are_recorded(cx.interface()) {
        return Ok(());
    }
    // A directory that cannot be written concerns only containers with such a record.
    if cx
        .journal
        .has_interface(InterfaceRole::Second, name)
        .map_err(journal_error)?
    {
        cx.journal
            .remove_interface(InterfaceRole::Second, name)
            .map_err(journal_error)?;
    }
    let is_in_endpoint = match cx.store.endpoint_form() {
        EndpointForm::Object => true,
        EndpointForm::PodAnnotations => name.ifname == POD_INTERFACE,
    };
    if !is_in_endpoint && let Err(error) = cx.journal.record_interface(InterfaceRole::First, name) {
        tracing::warn!(
            %error,
            hint = "a later ADD of eth0 of this container fails",
            "cannot record the name of the interface",
        );
    }
    Ok(())
}

/// Removes the records of the container, after a DEL of its interface.
pub fn remove_all(cx: &Context<impl World>) {
    if are_recorded(cx.interface())
        && let Err(error) = cx
            .journal
            .remove_interfaces_of(&cx.call.conf.name, &cx.call.container_id)
    {
        tracing::warn!(
            %error, "cannot remove the recorded interface names of the container; GC removes them",
        );
    }
}

/// Returns the name of the interface in the container that `result` records: CNI_IFNAME, or for a
/// further name of a pod the name of the first ADD, whose result the ADD returned.
pub fn attached_ifname(
    result: &CniResult,
    config: InterfaceConfig<'_>,
    host_ifname: &str,
) -> String {
    let requested = &config.call.ifname;
    let is_recorded = result
        .interfaces
        .iter()
        .any(|end| end.name == *requested && !end.sandbox.is_empty());
    if is_recorded || !config.is_of_pod() {
        return requested.clone();
    }
    let first = result.interfaces.windows(2).find_map(|ends| match ends {
        [host, inside]
            if host.name == host_ifname
                && host.sandbox.is_empty()
                && !inside.sandbox.is_empty() =>
        {
            Some(inside.name.clone())
        }
        _ => None,
    });
    first.unwrap_or_else(|| requested.clone())
}

#[cfg(test)]
mod tests {
    use netconf::result::Interface;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::open;
    use crate::world::ThisNode;

    const POD: &str = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web";

    fn context(args: &str, conf: Value, files: &tempfile::TempDir) -> Context<ThisNode> {
        open("DEL", args, conf, files.path())
    }

    fn local(files: &tempfile::TempDir) -> Value {
        json!({ "datastore_type": "local", "datastore_path": files.path().join("db") })
    }

    /// The ADD of a further name returns the result of the first.
    #[test]
    fn check_of_a_further_name_examines_the_first() {
        let files = tempfile::tempdir().unwrap();
        let ifname = |args: &str, inside: &str| {
            let cx = context(args, local(&files), &files);
            let end = |name: &str, sandbox: &str| Interface {
                name: name.to_owned(),
                sandbox: sandbox.to_owned(),
                ..Interface::default()
            };
            let interfaces = vec![
                end("br0", ""),
                end("br1", "/n"),
                end("cali1", ""),
                end(inside, "/n"),
            ];
            attached_ifname(
                &CniResult {
                    interfaces,
                    ..CniResult::default()
                },
                cx.interface(),
                "cali1",
            )
        };
        assert_eq!(ifname(POD, "first0"), "first0");
        assert_eq!(ifname(POD, "eth0"), "eth0");
        assert_eq!(ifname("", "first0"), "eth0");
    }

    #[test]
    fn further_name_is_known_by_its_record_or_by_prev_result() {
        let files = tempfile::tempdir().unwrap();
        let host_ifname = context(POD, local(&files), &files)
            .interface()
            .host_ifname();
        let with_result = |args: &str, inside: &str| {
            let mut conf = local(&files);
            let ends = json!([{ "name": host_ifname }, { "name": inside, "sandbox": "/n" }]);
            conf["prevResult"] = json!({ "cniVersion": "1.0.0", "interfaces": ends, "ips": [] });
            context(args, conf, &files)
        };
        let is_further = |cx: &Context<ThisNode>| is_further(cx).unwrap();
        assert!(is_further(&with_result(POD, "first0")));
        assert!(!is_further(&with_result(POD, "eth0")) && !is_further(&with_result("", "first0")));
        let cx = context(POD, local(&files), &files);
        assert!(!is_further(&cx));
        record_further(&cx).unwrap();
        assert!(is_further(&cx) && !is_further(&context("", local(&files), &files)));
        record_first(&cx).unwrap();
        assert!(
            !is_further(&cx),
            "a later ADD creates the interface with this name"
        );
    }

    /// As on a file system with damage. A directory that is a link to itself cannot be entered
    /// either.
    #[test]
    fn unreadable_record_of_a_further_name_is_named_and_the_call_repeated() {
        let files = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("journal", files.path().join("journal")).unwrap();
        let error = is_further(&context(POD, local(&files), &files)).unwrap_err();
        assert_eq!(error.code, Code::TRY_AGAIN);
        assert!(
            error
                .msg
                .contains(files.path().join("journal/").to_str().unwrap()),
            "{}",
            error.msg
        );

        let mut conf = local(&files);
        let host_ifname = context(POD, local(&files), &files)
            .interface()
            .host_ifname();
        let ends = json!([{ "name": host_ifname }, { "name": "first0", "sandbox": "/n" }]);
        conf["prevResult"] = json!({ "cniVersion": "1.0.0", "interfaces": ends, "ips": [] });
        assert!(
            is_further(&context(POD, conf, &files)).unwrap(),
            "prevResult suffices"
        );
    }

    #[test]
    fn first_name_on_kubernetes_is_known_by_its_record_only() {
        let files = tempfile::tempdir().unwrap();
        let open = |ifname: &str| {
            let conf = json!({
                "datastore_type": "kubernetes", "calico_api_group": "crd.projectcalico.org/v1",
                "nodename_file_optional": true,
                "kubernetes": { "k8s_api_root": "http://127.0.0.1:1" },
            });
            let mut cx = context(POD, conf, &files);
            cx.call.ifname = ifname.to_owned();
            cx
        };
        let (eth0, net1) = (open("eth0"), open("net1"));
        assert!(has_other_first(&net1, "eth0", "eth0").unwrap());
        assert!(
            !has_other_first(&eth0, "net1", "eth0").unwrap(),
            "eth0 may have been renamed"
        );
        record_first(&net1).unwrap();
        assert!(has_other_first(&eth0, "net1", "eth0").unwrap());
        assert!(!has_other_first(&net1, "renamed", "eth0").unwrap());
        remove_all(&eth0);
        assert!(!has_other_first(&eth0, "net1", "eth0").unwrap());
    }
}
