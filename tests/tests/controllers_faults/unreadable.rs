//! An unreadable configuration at the start of the program: no controller acts until the
//! configuration is corrected.

use std::time::Duration;

use integration_tests::controllers::{Setup, World};
use integration_tests::kubernetes::on_kubernetes;
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

const CRD: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/kubecontrollersconfigurations.crd.projectcalico.org";

fn on(group: Option<ApiGroup>) {
    on_kubernetes(|host, kubernetes| {
        let world = World::new(kubernetes, group);
        if group.is_some() {
            take_any_text(&world);
        }
        world.node("n1", "10.9.0.1");
        world.pool("pool4", "10.65.0.0/16", "Workload");
        world.pool("balancer", "10.80.0.0/26", "LoadBalancer");
        world.service("web", "10.80.0.7");
        let setup = || -> Setup {
            world
                .setup()
                .env("LEADER_ELECTION", "false")
                .arg("--health-port=9099")
        };
        let mut controllers = setup().start(host, "before").unwrap();
        let configuration = || world.calico("kubecontrollersconfigurations", "default");
        world.until(&controllers, "there is a configuration", || {
            !configuration().is_null()
        });
        world.configure(
            &json!({ "hostEndpoint": { "autoCreate": "Enabled" }, "leakGracePeriod": "1s" }),
        );
        let has_endpoint = || !world.calico("hostendpoints", "n1-auto-hep").is_null();
        world.until(&controllers, "the node has an endpoint", has_endpoint);
        world.until(&controllers, "the Service has an address", || {
            world.shown("web") == ["10.80.0.7"]
        });
        controllers.terminate().unwrap();

        world.configure(&json!({ "leakGracePeriod": "15" }));
        world.address_left_behind("n1", "10.65.1.0");
        world.merge(
            "/api/v1/nodes/n1",
            &json!({ "metadata": { "labels": { "zone": "a" } } }),
        );
        let setup = setup();
        let (before, audit) = (world.revisions(), world.api.audit().unwrap());
        let mut controllers = setup.start(host, "after").unwrap();
        world.until(&controllers, "an Event", || events(&world).len() == 1);
        let event = &events(&world)[0];
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
        assert_eq!(world.revisions(), before);
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

        world.configure(&json!({ "leakGracePeriod": "1s" }));
        world.until(&controllers, "the leak is gone", || {
            world.handles_and_blocks().0.len() == 1
        });
        assert!(has_endpoint());
        world.until(&controllers, "it is ready", || readyz().0 == 200);
        assert_eq!(events(&world).len(), 1, "told once");
        controllers.terminate().unwrap();
    });
}

#[test]
fn unreadable_configuration_in_etcd_stops_every_controller_until_corrected() {
    on(None);
}

#[test]
fn unreadable_configuration_in_crd_v1_stops_every_controller_until_corrected() {
    on(Some(ApiGroup::CrdV1));
}

/// Replaces the definition of KubeControllersConfiguration by one that accepts any text as a
/// duration.
fn take_any_text(world: &World<'_>) {
    let mut definition = world.get(CRD);
    without_patterns(&mut definition["spec"]);
    world
        .api
        .admin()
        .replace(CRD, &definition)
        .unwrap()
        .success()
        .unwrap();
    let object = json!({
        "apiVersion": ApiGroup::CrdV1.api_version(), "kind": "KubeControllersConfiguration",
        "metadata": { "name": "probe" },
        "spec": { "controllers": { "node": { "leakGracePeriod": "15" } } },
    });
    let taken = || Ok(world.api.admin().apply_object(&object).is_ok());
    integration_tests::controllers::await_that(Duration::from_secs(30), taken).unwrap();
    world.remove(&world.path("kubecontrollersconfigurations", "probe"));
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

fn events(world: &World<'_>) -> Vec<Value> {
    let mut events = world.api.admin().events_of_controllers("default").unwrap();
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
