use std::sync::Mutex;
use std::time::Duration;

use datastore::Datastore;
use libcalico::store::{Kind, ReadBatch, Write, WriteOp};
use libcalico::variables::Variables;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::*;
use crate::controllers::testing::{embedded, posting_kubernetes};

fn configured(leak_grace_period: &str) -> Vec<u8> {
    let node = json!({
        "hostEndpoint": { "autoCreate": "Enabled" }, "leakGracePeriod": leak_grace_period,
    });
    let object = json!({
        "kind": "KubeControllersConfiguration", "apiVersion": "projectcalico.org/v3",
        "metadata": { "name": NAME },
        "spec": { "controllers": { "node": node } },
    });
    object.to_string().into_bytes()
}

fn with_auto_create(value: &str) -> Vec<u8> {
    let text = String::from_utf8(configured("15m")).unwrap();
    text.replace("\"Enabled\"", &format!("{value:?}"))
        .into_bytes()
}

async fn store(calico: &Datastore, bytes: Vec<u8>) {
    let key = ObjectKey::global(NAME);
    let mut batch = ReadBatch::new();
    let ticket = batch.get::<KubeControllersConfiguration>(&key);
    let stored = calico.read(&batch).await.unwrap();
    let op = match stored.raw(&ticket) {
        None => WriteOp::Create(bytes),
        Some(raw) => WriteOp::Update(bytes, raw.revision.clone()),
    };
    let (kind, path) = (
        KubeControllersConfiguration::KIND,
        KubeControllersConfiguration::path(&key),
    );
    calico
        .write_one(Write {
            kind,
            path,
            key: key.to_string(),
            op,
        })
        .await
        .unwrap();
}

struct ConfiguredProcess {
    configuration: Configuration,
    status: Status,
    stop: CancellationToken,
    calico: Arc<Datastore>,
    events: Arc<Mutex<Vec<Value>>>,
    _dirs: [tempfile::TempDir; 2],
}

fn process() -> ConfiguredProcess {
    let (dir, calico) = embedded();
    let status_dir = tempfile::tempdir().unwrap();
    let (kubernetes, events) = posting_kubernetes();
    let clients = Clients {
        kubernetes,
        calico: calico.clone(),
        mode: Mode::Etcd,
    };
    let environment = Environment::read(Variables::NONE).unwrap();
    ConfiguredProcess {
        configuration: Configuration::new(
            clients,
            environment,
            Leadership::always(),
            Leadership::always(),
        ),
        status: Status::new(status_dir.path().join("status.json")),
        stop: CancellationToken::new(),
        calico,
        events,
        _dirs: [dir, status_dir],
    }
}

#[tokio::test(start_paused = true)]
async fn unreadable_configuration_is_awaited_and_reported_once() {
    let process = process();
    store(&process.calico, configured("15")).await;
    let mut first = std::pin::pin!(
        process
            .configuration
            .read_first(&process.status, &process.stop)
    );
    for _ in 0..3 {
        let settings = timeout(Duration::from_secs(60), &mut first).await;
        assert!(settings.is_err(), "no settings to act on: {settings:?}");
        let condition = &process.status.readiness()["KubeControllersConfiguration"];
        assert!(
            !condition.ready && condition.reason.contains("`15` is not a duration"),
            "{}",
            condition.reason
        );
    }
    let events = std::mem::take(&mut *process.events.lock().unwrap());
    let [event] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(
        event["involvedObject"]["kind"],
        "KubeControllersConfiguration"
    );
    assert_eq!(
        (&event["type"], &event["reason"]),
        (&json!("Warning"), &json!("UnreadableConfiguration"))
    );
    assert!(
        event["message"]
            .as_str()
            .unwrap()
            .contains("`15` is not a duration"),
        "{event}"
    );

    store(&process.calico, configured("15m")).await;
    let settings = timeout(Duration::from_secs(60), first)
        .await
        .expect("it can be read")
        .expect("not told to stop");
    assert!(settings.host_endpoints.enabled);
    assert_eq!(
        process.status.readiness().len(),
        0,
        "nothing more to be ready for"
    );
}

#[tokio::test(start_paused = true)]
async fn configuration_with_an_unknown_value_is_applied_and_reported() {
    let process = process();
    let expected = "hostEndpoint.autoCreate: `Enable` is not one of Enabled, Disabled";
    // An Event is posted each time that the value becomes invalid.
    for (auto_create, told) in [("Enable", 1), ("Enable", 0), ("Enabled", 0), ("Enable", 1)] {
        store(&process.calico, with_auto_create(auto_create)).await;
        let settings = process
            .configuration
            .read_first(&process.status, &process.stop)
            .await
            .expect("not told to stop");
        assert_eq!(settings.host_endpoints.keep, auto_create == "Enable");
        let events = std::mem::take(&mut *process.events.lock().unwrap());
        assert_eq!(events.len(), told, "{auto_create}");
        assert!(
            events
                .iter()
                .all(|event| event["message"].as_str().unwrap().contains(expected)),
            "{events:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn configuration_that_becomes_unreadable_again_is_reported_again() {
    let messages = |process: &ConfiguredProcess| {
        let events = std::mem::take(&mut *process.events.lock().unwrap());
        events
            .iter()
            .map(|event| event["message"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    // The problems of a readable object are repeated as well, because the object's unreadability
    // was reported last.
    for (auto_create, problems) in [("Enabled", 0), ("Enable", 1)] {
        let process = process();
        for _ in 0..2 {
            store(&process.calico, with_auto_create(auto_create)).await;
            process
                .configuration
                .read_first(&process.status, &process.stop)
                .await
                .expect("not told to stop");
            assert_eq!(messages(&process).len(), problems, "{auto_create}");
            store(&process.calico, configured("15")).await;
            process.configuration.report_if_unreadable().await;
            process.configuration.report_if_unreadable().await;
            let told = messages(&process);
            assert!(
                told.len() == 1 && told[0].starts_with("the settings in force stay in force: "),
                "{told:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn problem_that_appears_between_the_first_read_and_the_watch_is_reported() {
    let (invalid, valid) = (with_auto_create("Enable"), configured("15m"));
    for (before, described) in [
        (None, "created"),
        (Some(valid), "changed"),
        (Some(invalid.clone()), "unchanged"),
    ] {
        let process = process();
        if let Some(before) = before {
            store(&process.calico, before).await;
        }
        let settings = process
            .configuration
            .read_first(&process.status, &process.stop)
            .await
            .expect("not told to stop");
        store(&process.calico, invalid.clone()).await;
        let found = process
            .calico
            .get::<KubeControllersConfiguration>(&ObjectKey::global(NAME))
            .await
            .unwrap();
        let (sender, watched) = mpsc::unbounded_channel();
        sender.send(WatchEvent::Upsert(found)).unwrap();
        let settings = watch::Sender::new(Arc::new(settings));
        let follow = process
            .configuration
            .follow_events(watched, settings, process.stop);
        assert!(
            timeout(Duration::from_secs(60), follow).await.is_err(),
            "it follows until it is told to stop"
        );
        let events = process.events.lock().unwrap();
        let [event] = &events[..] else {
            panic!("{described}: {events:?}")
        };
        assert!(
            event["message"]
                .as_str()
                .unwrap()
                .contains("`Enable` is not one of Enabled"),
            "{event}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn missing_configuration_yields_the_default_settings() {
    let process = process();
    let settings = process
        .configuration
        .read_first(&process.status, &process.stop)
        .await
        .unwrap();
    assert!(!settings.host_endpoints.enabled && process.events.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn deleted_configuration_is_recreated_with_the_same_settings() {
    let process = process();
    let key = ObjectKey::global(NAME);
    store(&process.calico, configured("7m")).await;
    let stored = process
        .calico
        .get::<KubeControllersConfiguration>(&key)
        .await
        .unwrap();
    let mut state = ConfigurationState::default();
    for event in [
        WatchEvent::ListStart,
        WatchEvent::Upsert(stored.clone()),
        WatchEvent::ListEnd,
        WatchEvent::Delete(stored.key.clone()),
    ] {
        state.apply(event);
    }
    process
        .calico
        .delete::<KubeControllersConfiguration>(&key, None)
        .await
        .unwrap();
    process
        .configuration
        .write(StateChange::Create, &state, None)
        .await;
    let made = process
        .calico
        .get::<KubeControllersConfiguration>(&key)
        .await
        .unwrap();
    assert_eq!(made.value.spec, stored.value.spec);
    assert!(made.value.metadata.uid != stored.value.metadata.uid && made.value.status.is_some());
}
