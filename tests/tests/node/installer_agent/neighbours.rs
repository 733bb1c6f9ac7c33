//! The agent beside running neighbors: it writes the configuration once for each foreign change of
//! our entries.

use std::fs;
use std::slice;
use std::sync::atomic::Ordering;

use integration_tests::clock::KNOWN;
use integration_tests::installation::{BIN, NET};
use integration_tests::neighbours::{
    CILIUM_CONF, CiliumAgent, IstioAgent, LinkerdInstaller, MultusDaemon, MultusEntrypoint,
    OwnWrites, PodStarts, Running, kinds, operator_installs, plugin, settle, upstream_installs,
    upstream_renews,
};
use integration_tests::node_pod::{NAMESPACE, NodePod};
use integration_tests::skip::skipped;
use serde_json::Value;

use crate::installer_agent::pod::{
    CONF, ClockedAgent, PLUGINS, REASON, in_pod, install, token_requests,
};

/// Changes one of our entries.
#[track_caller]
fn edit(pod: &NodePod) {
    let text = pod.container.conf(CONF).unwrap();
    fs::write(
        pod.container.path(NET).join(CONF),
        text.replace("\"snat\": true", "\"snat\": false"),
    )
    .unwrap();
}

#[track_caller]
fn conf(pod: &NodePod) -> Value {
    serde_json::from_str(&pod.container.conf(CONF).unwrap()).unwrap()
}

#[test]
fn agent_restores_an_edited_entry_beside_running_istio_and_linkerd_once() {
    if !KNOWN {
        return skipped(REASON);
    }
    in_pod(|_, _, mut pod| {
        install(&mut pod);
        let net = pod.container.path(NET);
        let istio = Running::start(IstioAgent::default(), &net).unwrap();
        let neighbours = [
            istio,
            Running::start(LinkerdInstaller::default(), &net).unwrap(),
        ];
        settle(&neighbours).unwrap();
        let mut agent = ClockedAgent::start(&pod);
        agent.await_page("/readiness", 200).unwrap();
        let mut writes = OwnWrites::watch(&net.join(CONF)).unwrap();
        edit(&pod);
        settle(&neighbours).unwrap();
        let pods = ["istio-cni", "linkerd-cni"].map(|kind| PodStarts::watch(&net, kind));
        agent.check_and_restore();
        settle(&neighbours).unwrap();
        agent.restore_a_program(&pod);
        settle(&neighbours).unwrap();
        assert_eq!(writes.count().unwrap(), 1);
        assert!(pods.into_iter().all(|pods| pods.end().unwrap() > 0));
        let restored = pod.container.conf(CONF).unwrap();
        assert_eq!(kinds(&restored).len(), 4, "{restored}");
        assert_eq!(plugin(&restored, "portmap")["snat"], true);
    });
}

/// Each start of calico-node's pod removes the entry of istio-cni.
#[test]
fn agent_restores_the_configuration_once_for_each_start_of_upstreams_installer() {
    if !KNOWN {
        return skipped(REASON);
    }
    in_pod(|_, _, mut pod| {
        install(&mut pod);
        let net = pod.container.path(NET);
        let istio = Running::start(IstioAgent::default(), &net).unwrap();
        settle(slice::from_ref(&istio)).unwrap();
        let ours = pod.container.conf(CONF).unwrap();
        let mut agent = ClockedAgent::start(&pod);
        agent.await_page("/readiness", 200).unwrap();
        let mut writes = OwnWrites::watch(&net.join(CONF)).unwrap();
        for starts in 1..=2 {
            upstream_installs(&net.join(CONF)).unwrap();
            settle(slice::from_ref(&istio)).unwrap();
            agent.check_and_restore();
            agent.restore_a_program(&pod);
            settle(slice::from_ref(&istio)).unwrap();
            assert_eq!(
                (writes.count().unwrap(), istio.writes()),
                (starts, starts + 1)
            );
            let text = pod.container.conf(CONF).unwrap();
            assert_eq!(kinds(&text), ["calico", "portmap", "istio-cni"], "{text}");
            assert_eq!(plugin(&text, "calico"), plugin(&ours, "calico"));
        }
        agent.await_page("/readiness", 200).unwrap();
    });
}

/// The operator restores `install-cni` in its DaemonSet, and the new pod on the node writes
/// programs, kubeconfig and configuration.
#[test]
fn agent_restores_programs_and_configuration_once_for_each_revert_of_the_operator() {
    if !KNOWN {
        return skipped(REASON);
    }
    in_pod(|_, kubernetes, mut pod| {
        install(&mut pod);
        let (net, program) = (
            pod.container.path(NET),
            pod.container.path(BIN).join("calico"),
        );
        let (ours, our_program) = (conf(&pod), fs::read(&program).unwrap());
        kubernetes
            .api
            .service_account("calico-system", PLUGINS)
            .unwrap();
        let mut agent = ClockedAgent::start(&pod);
        agent.await_metric("token_refreshes_total", 1).unwrap();
        agent.await_page("/readiness", 200).unwrap();
        let audit = kubernetes.api.audit().unwrap();
        let mut writes = OwnWrites::watch(&net.join(CONF)).unwrap();
        for reverts in 1..=3 {
            let token = kubernetes.api.token("calico-system", PLUGINS).unwrap();
            pod.container
                .program(&format!("{BIN}/calico"), "upstream")
                .unwrap();
            upstream_renews(&pod.kubeconfig(), &token).unwrap();
            operator_installs(&net.join(CONF)).unwrap();
            agent.check_and_restore();
            agent.restore_a_program(&pod);
            assert_eq!(
                (writes.count().unwrap(), conf(&pod)),
                (reverts, ours.clone())
            );
            assert!(
                fs::read(&program).unwrap() == our_program,
                "it is not our program"
            );
            assert_eq!(pod.token().unwrap(), token);
        }
        assert_eq!(
            token_requests(&audit, &pod).unwrap(),
            0,
            "a valid token stays"
        );
        agent.await_page("/readiness", 200).unwrap();
    });
}

#[test]
fn agent_keeps_a_valid_token_that_calico_node_wrote() {
    if !KNOWN {
        return skipped(REASON);
    }
    in_pod(|_, kubernetes, mut pod| {
        install(&mut pod);
        let mut agent = ClockedAgent::start(&pod);
        agent.await_metric("token_refreshes_total", 1).unwrap();
        let token = kubernetes.api.token(NAMESPACE, PLUGINS).unwrap();
        upstream_renews(&pod.kubeconfig(), &token).unwrap();
        let before = fs::read_to_string(pod.kubeconfig()).unwrap();
        let audit = kubernetes.api.audit().unwrap();
        // The agent would replace a rejected token.
        agent.restore_a_program(&pod);
        let user = format!("system:serviceaccount:{NAMESPACE}:{PLUGINS}");
        assert!(
            audit
                .of(&user)
                .unwrap()
                .iter()
                .any(|request| request.resource == "/version")
        );
        assert_eq!(token_requests(&audit, &pod).unwrap(), 0);
        assert_eq!(pod.token().unwrap(), token);
        assert_eq!(fs::read_to_string(pod.kubeconfig()).unwrap(), before);
        assert_eq!(agent.metric("token_refused_total").unwrap(), 0);
    });
}

#[test]
fn agent_leaves_a_configuration_that_cilium_renamed() {
    if !KNOWN {
        return skipped(REASON);
    }
    in_pod(|_, _, mut pod| {
        install(&mut pod);
        let net = pod.container.path(NET);
        let mut writes = OwnWrites::watch(&net.join(CONF)).unwrap();
        let chained = Running::start(CiliumAgent { chains: true }, &net).unwrap();
        settle(slice::from_ref(&chained)).unwrap();
        let pods = PodStarts::watch(&net, "cilium-cni");
        let mut agent = ClockedAgent::start(&pod);
        agent.await_page("/readiness", 200).unwrap();
        agent.restore_a_program(&pod);
        settle(slice::from_ref(&chained)).unwrap();
        agent.await_page("/readiness", 200).unwrap();
        assert_eq!(
            (writes.count().unwrap(), chained.writes()),
            (0, 2),
            "Cilium's configuration runs Calico's plugin"
        );

        // Without chaining, pods get Cilium's network.
        drop(chained);
        let alone = Running::start(CiliumAgent { chains: false }, &net).unwrap();
        settle(slice::from_ref(&alone)).unwrap();
        agent.make_check_due();
        agent
            .await_reason(&[CILIUM_CONF, "cilium_bak", "cni.chainingMode"])
            .unwrap();
        agent.restore_a_program(&pod);
        assert_eq!(
            (
                writes.count().unwrap(),
                agent.metric("config_chosen").unwrap()
            ),
            (0, 0)
        );
        assert!(pods.end().unwrap() > 0);

        drop(alone);
        fs::remove_file(net.join(CILIUM_CONF)).unwrap();
        agent.check_and_restore();
        agent.await_page("/readiness", 200).unwrap();
        assert!(net.join(CONF).is_file() && writes.count().unwrap() == 1);
    });
}

/// The daemon removes its configuration when its pod ends.
#[test]
fn agent_beside_running_multus_writes_once() {
    if !KNOWN {
        return skipped(REASON);
    }
    in_pod(|_, _, mut pod| {
        install(&mut pod);
        let (net, ours) = (pod.container.path(NET), conf(&pod));
        let mut agent = ClockedAgent::start(&pod);
        agent.await_page("/readiness", 200).unwrap();
        let mut writes = OwnWrites::watch(&net.join(CONF)).unwrap();
        let daemons = [
            (MultusDaemon::default(), 1),
            (MultusDaemon::with_indicator(), 0),
            (MultusDaemon::with_forced_version(), 1),
        ];
        for (changes, (daemon, answers)) in (1..).zip(daemons) {
            let exits = daemon.exits.clone();
            let multus = Running::start(daemon, &net).unwrap();
            settle(slice::from_ref(&multus)).unwrap();
            let pods = PodStarts::watch(&net, "multus-shim");
            edit(&pod);
            settle(slice::from_ref(&multus)).unwrap();
            let before = multus.writes();
            agent.check_and_restore();
            agent.restore_a_program(&pod);
            settle(slice::from_ref(&multus)).unwrap();
            assert!(pods.end().unwrap() > 0);
            assert_eq!(
                (writes.count().unwrap(), multus.writes() - before),
                (changes, answers)
            );
            assert_eq!(
                (exits.load(Ordering::SeqCst), conf(&pod)),
                (0, ours.clone())
            );
            agent.await_page("/readiness", 200).unwrap();

            drop(multus);
            MultusDaemon::leaves(&net).unwrap();
            agent.restore_a_program(&pod);
            agent.await_page("/readiness", 200).unwrap();
            assert_eq!(writes.count().unwrap(), changes, "pods start with our file");
            assert_eq!(pod.container.names(NET), [CONF, "calico-kubeconfig"]);
        }
    });
}

/// The reason for a write is an edited entry, or with `--rename-conf-file` the rename at each start
/// of Multus' pod.
#[test]
fn agent_beside_polling_multus_writes_once() {
    if !KNOWN {
        return skipped(REASON);
    }
    in_pod(|_, _, mut pod| {
        install(&mut pod);
        let (net, ours) = (pod.container.path(NET), conf(&pod));
        let mut agent = ClockedAgent::start(&pod);
        agent.await_page("/readiness", 200).unwrap();
        let mut writes = OwnWrites::watch(&net.join(CONF)).unwrap();
        for (changes, renames) in (1..).zip([false, true, true]) {
            let multus = Running::start(MultusEntrypoint::new(renames), &net).unwrap();
            settle(slice::from_ref(&multus)).unwrap();
            assert_eq!(net.join(CONF).exists(), !renames);
            let pods = PodStarts::watch(&net, "multus");
            if !renames {
                edit(&pod);
                settle(slice::from_ref(&multus)).unwrap();
            }
            agent.check_and_restore();
            agent.restore_a_program(&pod);
            settle(slice::from_ref(&multus)).unwrap();
            assert!(pods.end().unwrap() > 0);
            assert_eq!(
                (writes.count().unwrap(), conf(&pod)),
                (changes, ours.clone())
            );
            let copy = plugin(&pod.container.conf("00-multus.conflist").unwrap(), "multus");
            assert_eq!(copy["delegates"][0], ours);
            agent.await_page("/readiness", 200).unwrap();
        }
    });
}
