//! An unreadable configuration at the start of the program: no controller acts until the
//! configuration is corrected.

use std::time::Duration;

use integration_tests::controllers::{ControllersCluster, Setup, await_that, on};
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

const CRD: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/kubecontrollersconfigurations.crd.projectcalico.org";

/// Shows SEC-66.
#[on(etcd)]
fn unreadable_configuration_in_etcd_stops_every_controller_until_corrected(
    cluster: &ControllersCluster<'_>,
) {
    assert_stopped_until_corrected(cluster);
}

#[on(kubernetes_v1)]
fn unreadable_configuration_in_crd_v1_stops_every_controller_until_corrected(
    cluster: &ControllersCluster<'_>,
) {
    accept_any_text(cluster);
    assert_stopped_until_corrected(cluster);
}

fn assert_stopped_until_corrected(cluster: &ControllersCluster<'_>) {
    cluster.node("n1", "10.9.0.1");
    cluster.pool("pool4", "10.65.0.0/16", "Workload");
    cluster.pool("balancer", "10.80.0.0/26", "LoadBalancer");
    cluster.service("web", "10.80.0.7");
    let setup = || -> Setup {
        cluster
            .setup()
            .env("LEADER_ELECTION", "false")
            .arg("--health-port=9099")
    };
    let mut controllers = setup().start(cluster.host, "before").unwrap();
    let configuration = || cluster.calico("kubecontrollersconfigurations", "default");
    cluster.until(&controllers, "there is a configuration", || {
        !configuration().is_null()
    });
    cluster.configure(
        &json!({ "hostEndpoint": { "autoCreate": "Enabled" }, "leakGracePeriod": "1s" }),
    );
    let has_endpoint = || !cluster.calico("hostendpoints", "n1-auto-hep").is_null();
    cluster.until(&controllers, "the node has an endpoint", has_endpoint);
    cluster.until(&controllers, "the Service has an address", || {
        cluster.shown("web") == ["10.80.0.7"]
    });
    controllers.terminate().unwrap();

    cluster.configure(&json!({ "leakGracePeriod": "15" }));
    cluster.address_left_behind("n1", "10.65.1.0");
    cluster.merge(
        "/api/v1/nodes/n1",
        &json!({ "metadata": { "labels": { "zone": "a" } } }),
    );
    let setup = setup();
    let (before, audit) = (cluster.revisions(), cluster.api.audit().unwrap());
    let mut controllers = setup.start(cluster.host, "after").unwrap();
    cluster.until(&controllers, "an Event", || events(cluster).len() == 1);
    let event = &events(cluster)[0];
    assert_eq!(
        (&event["reason"], &event["type"]),
        (&json!("UnreadableConfiguration"), &json!("Warning"))
    );
    assert!(
        event["message"]
            .as_str()
            .unwrap()
            .contains("`15` is not a duration"),
        "{event}"
    );
    controllers
        .await_log("cannot read KubeControllersConfiguration, trying again", 3)
        .unwrap();
    let (code, said) = readyz();
    assert_eq!(code, 503);
    assert!(
        said.contains("KubeControllersConfiguration not ready") && said.contains("`15`"),
        "{said}"
    );
    assert_eq!(cluster.revisions(), before);
    let writes = audit.requests().unwrap().into_iter().filter(|request| {
        request.verb != "get"
            && request.verb != "list"
            && request.verb != "watch"
            && request.resource != "events"
    });
    assert_eq!(writes.count(), 0, "{:?}", audit.lines());
    assert!(
        !controllers.log().unwrap().contains("running controllers: "),
        "{}",
        controllers.log().unwrap()
    );

    cluster.configure(&json!({ "leakGracePeriod": "1s" }));
    cluster.until(&controllers, "the leak is gone", || {
        cluster.handles_and_blocks().0.len() == 1
    });
    assert!(has_endpoint());
    cluster.until(&controllers, "it is ready", || readyz().0 == 200);
    assert_eq!(events(cluster).len(), 1, "one Event");
    controllers.terminate().unwrap();
}

/// Replaces the definition of KubeControllersConfiguration by one that accepts any text as a
/// duration.
fn accept_any_text(cluster: &ControllersCluster<'_>) {
    let mut definition = cluster.get(CRD);
    without_patterns(&mut definition["spec"]);
    cluster
        .api
        .admin()
        .replace(CRD, &definition)
        .unwrap()
        .success();
    let object = json!({
        "apiVersion": ApiGroup::CrdV1.api_version(), "kind": "KubeControllersConfiguration",
        "metadata": { "name": "probe" },
        "spec": { "controllers": { "node": { "leakGracePeriod": "15" } } },
    });
    let is_accepted = || Ok(cluster.admin().apply_object(&object).is_ok());
    await_that(Duration::from_secs(30), is_accepted).unwrap();
    cluster.remove(&cluster.path("kubecontrollersconfigurations", "probe"));
}

fn without_patterns(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.remove("pattern");
            fields.values_mut().for_each(without_patterns);
        }
        Value::Array(items) => items.iter_mut().for_each(without_patterns),
        _ => {}
    }
}

fn events(cluster: &ControllersCluster<'_>) -> Vec<Value> {
    let mut events = cluster
        .api
        .admin()
        .events_of_controllers("default")
        .unwrap();
    events.retain(|event| event["involvedObject"]["kind"] == "KubeControllersConfiguration");
    events
}

fn readyz() -> (u16, String) {
    let agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .proxy(None)
        .build();
    let Ok(mut answer) = ureq::Agent::from(agent)
        .get("http://127.0.0.1:9099/readyz")
        .call()
    else {
        return (0, String::new());
    };
    (
        answer.status().as_u16(),
        answer.body_mut().read_to_string().unwrap_or_default(),
    )
}
