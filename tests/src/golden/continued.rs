//! A state that upstream left on Kubernetes, recreated from its recording, from which our binaries
//! continue.
//!
//! Objects, pods and network namespaces are as recorded. Of an interface, only the parts that DEL
//! and the next ADD read are recreated.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::cluster;
use super::compare::{Difference, differences};
use super::marks::{Bindings, Concrete};
use super::recording::{Before, Pod, Recording, Step};
use super::replay::{Target, places, run};
use super::wanted::Wanted;
use crate::command::ip;
use crate::kubernetes::Client;
use crate::namespaces::{Host, NETNS_DIR};
use crate::plugin::Call;

/// A state of a recording after a step.
#[derive(Debug, Clone, Copy)]
pub struct State<'r> {
    recording: &'r Recording,
    /// Number of steps that upstream executed.
    steps: usize,
}

/// A container of a recording.
#[derive(Debug, Clone, Copy)]
pub struct Container<'r> {
    added: &'r Step,
}

/// Returns the state after each step of a recording. The replay of a recording begins in the
/// initial state.
pub fn states(recording: &Recording) -> impl Iterator<Item = State<'_>> {
    (1..=recording.steps.len()).map(move |steps| State { recording, steps })
}

impl<'r> State<'r> {
    fn store(&self) -> Value {
        self.recording.steps[self.steps - 1].after.store.clone()
    }

    /// Recreates the state.
    pub fn make(&self, target: &Target<'_>) -> Result<()> {
        let concrete = Concrete::new(&places(target)).value(&self.store());
        let (pods, objects): (BTreeMap<String, Value>, _) =
            serde_json::from_value::<BTreeMap<String, Value>>(concrete)?
                .into_iter()
                .partition(|(key, _)| key.starts_with("pods/"));
        target.store.load(&objects)?;
        let client = target.kubernetes.context("there is no Kubernetes here")?;
        for (key, seen) in &pods {
            let (_, name) = key.rsplit_once('/').with_context(|| key.clone())?;
            self.make_pod(client, name, &seen["annotations"])?;
        }
        self.make_links(target)?;
        self.attached().try_for_each(|step| lease(step, target))
    }

    fn make_pod(&self, client: &Client, name: &str, annotations: &Value) -> Result<()> {
        cluster::create_pod(
            client,
            self.created(name)
                .with_context(|| format!("pod {name} was not created"))?,
        )?;
        let path = format!("/api/v1/namespaces/{}/pods/{name}", cluster::NAMESPACE);
        let patch = json!({ "metadata": { "annotations": annotations } });
        client
            .patch(&path, &patch)?
            .checked()
            .context(path)
            .map(drop)
    }

    fn created(&self, name: &str) -> Option<&'r Pod> {
        self.past().rev().find_map(|step| match &step.before {
            Some(Before::CreatePod(pod)) if pod.name == name => Some(pod),
            _ => None,
        })
    }

    fn past(&self) -> impl DoubleEndedIterator<Item = &'r Step> {
        self.recording.steps[..self.steps].iter()
    }

    fn make_links(&self, target: &Target<'_>) -> Result<()> {
        let Some(step) = self.past().next_back() else {
            return Ok(());
        };
        let after = Concrete::new(&places(target)).value(&json!(step.after));
        for (name, pod) in after["pods"].as_object().into_iter().flatten() {
            target.host.ensure_pod(name)?;
            for (ifname, link) in pod["links"].as_object().into_iter().flatten() {
                make_pair(name, ifname, link, &after["host"])?;
            }
        }
        Ok(())
    }

    /// Returns the ADDs of the containers that are in the network in this state.
    fn attached(&self) -> impl Iterator<Item = &'r Step> {
        let mut attached: BTreeMap<&str, &Step> = BTreeMap::new();
        for step in self.past().filter(|step| step.exit == 0) {
            let id = step.env.get("CNI_CONTAINERID").map_or("", String::as_str);
            match step.env.get("CNI_COMMAND").map_or("", String::as_str) {
                "ADD" => drop(attached.insert(id, step)),
                "DEL" => drop(attached.remove(id)),
                _ => {}
            }
        }
        attached.into_values()
    }

    /// Returns the state after the next step, or the same state after the last step.
    #[must_use]
    pub fn next(self) -> State<'r> {
        State {
            steps: self.recording.steps.len().min(self.steps + 1),
            ..self
        }
    }

    /// Returns every container with an ADD before this state, successful or not.
    pub fn containers(&self) -> Vec<Container<'r>> {
        let mut containers: Vec<Container<'r>> = Vec::new();
        for added in self.past().filter(|step| step.env["CNI_COMMAND"] == "ADD") {
            if containers
                .iter()
                .all(|known| known.id() != added.env["CNI_CONTAINERID"])
            {
                containers.push(Container { added });
            }
        }
        containers
    }

    /// Runs the step after this state with our binaries. Returns the differences from upstream,
    /// except the wanted ones. Of the kernel's state, compares only the names of links. Does
    /// nothing for the last state.
    pub fn differences_of_next_step(&self, target: &Target<'_>) -> Result<Vec<Difference>> {
        let Some(step) = self.recording.steps.get(self.steps) else {
            return Ok(Vec::new());
        };
        let places = places(target);
        let mut bindings = Bindings::new(places.clone()).at_any_time();
        let mut found = differences(
            &self.store(),
            &json!(target.store.dump()?),
            "",
            &mut bindings,
        );
        let (mut ours, _) = run(step, &places, target)?;
        let mut recorded = json!({ "exit": step.exit, "stdout": step.stdout, "after": step.after });
        for step in [&mut ours, &mut recorded] {
            names_of_links(&mut step["after"]);
        }
        let differing = differences(&recorded, &ours, "", &mut bindings);
        let mut wanted = Wanted::load(self.recording, target.store.name())?;
        found.extend(wanted.unexcused(self.steps, differing, &ours, &mut bindings));
        Ok(found)
    }

    /// Creates a pod that the recording does not contain, and returns its ADD and DEL, with the
    /// configuration of a recorded ADD. Returns `None` if no ADD is recorded, or if its step
    /// creates no Pod.
    pub fn newcomer(&self, target: &Target<'_>) -> Result<Option<(Call, Call)>> {
        let is_add = |step: &&Step| step.env["CNI_COMMAND"] == "ADD";
        let past = self.past().rev().find(is_add);
        let Some(like) = past.or_else(|| self.recording.steps.iter().find(is_add)) else {
            return Ok(None);
        };
        let Some(Before::CreatePod(pod)) = &like.before else {
            return Ok(None);
        };
        let pod = Pod {
            name: NEWCOMER.into(),
            annotations: BTreeMap::new(),
            ..pod.clone()
        };
        cluster::create_pod(
            target.kubernetes.context("there is no Kubernetes here")?,
            &pod,
        )?;
        target.host.ensure_pod(NEWCOMER)?;
        let id = "feed".repeat(16);
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={NEWCOMER}",
            cluster::NAMESPACE
        );
        let call = |verb: &str| {
            call(target, like, verb)
                .env("CNI_CONTAINERID", &id)
                .env("CNI_NETNS", Path::new(NETNS_DIR).join(NEWCOMER))
                .env("CNI_ARGS", &args)
        };
        Ok(Some((call("ADD"), call("DEL"))))
    }
}

const NEWCOMER: &str = "newcomer";

impl Container<'_> {
    fn id(&self) -> &str {
        &self.added.env["CNI_CONTAINERID"]
    }

    /// Returns the DEL of the container, with the configuration of its ADD.
    pub fn del(&self, target: &Target<'_>) -> Call {
        call(target, self.added, "DEL")
    }

    /// Deletes the network namespace of the container.
    pub fn lose_namespace(&self, host: &Host) -> Result<()> {
        let path = Path::new(&self.added.env["CNI_NETNS"]);
        match path.file_name().and_then(|name| name.to_str()) {
            Some(name) if path.exists() => host.delete_pod(name),
            _ => Ok(()),
        }
    }
}

/// Prepares a call with the environment and the configuration of a step, and with another CNI
/// command.
fn call(target: &Target<'_>, step: &Step, verb: &str) -> Call {
    let stdin = target
        .store
        .reconfigured(&Concrete::new(&places(target)).value(&step.stdin));
    let call = target.plugins.call(&step.prog).stdin(stdin.to_string());
    step.env
        .iter()
        .fold(call, |call, (name, value)| call.env(name, value))
        .env("CNI_COMMAND", verb)
}

/// Writes the files in which host-local stores the addresses of an ADD, if the ADD used host-local.
fn lease(added: &Step, target: &Target<'_>) -> Result<()> {
    let conf = Concrete::new(&places(target)).value(&added.stdin);
    if conf["ipam"]["type"] != "host-local" {
        return Ok(());
    }
    let directory = Path::new(
        conf["ipam"]["dataDir"]
            .as_str()
            .unwrap_or("/var/lib/cni/networks"),
    );
    let directory = directory.join(conf["name"].as_str().unwrap_or_default());
    fs::create_dir_all(&directory)?;
    for ip in added.stdout["ips"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|ip| ip["address"].as_str())
    {
        let holder = format!(
            "{}\r\n{}",
            added.env["CNI_CONTAINERID"], added.env["CNI_IFNAME"]
        );
        fs::write(directory.join(plain(ip)), holder)?;
    }
    Ok(())
}

fn plain(address: &str) -> &str {
    address.split('/').next().unwrap_or_default()
}

/// Creates both ends of a pod's interface. The host end is the link to which the pod's addresses
/// are routed, or without such a route the first link of the host.
fn make_pair(pod: &str, ifname: &str, link: &Value, host: &Value) -> Result<()> {
    let mac = link["mac"].as_str().context("a link has no MAC address")?;
    let global = |address: &Value| address.as_str()?.strip_suffix(" global").map(str::to_owned);
    let addresses: Vec<String> = link["addrs"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(global)
        .collect();
    let routes = host["routes"].as_array().map_or(&[][..], Vec::as_slice);
    let is_to = |route: &&Value| {
        addresses
            .iter()
            .any(|address| route["dst"] == plain(address))
    };
    let routed = routes
        .iter()
        .find(is_to)
        .and_then(|route| route["dev"].as_str());
    let links = host["links"].as_object().context("the host has links")?;
    let host_end = routed
        .or_else(|| links.keys().next().map(String::as_str))
        .context("an interface has another end")?;
    ip(&format!(
        "link add {host_end} type veth peer name {ifname} address {mac} netns {pod}"
    ))?;
    ip(&format!("link set {host_end} address ee:ee:ee:ee:ee:ee up"))?;
    ip(&format!("-n {pod} link set {ifname} up"))?;
    for address in &addresses {
        ip(&format!("-n {pod} address add {address} dev {ifname}"))?;
        if routed.is_some() {
            ip(&format!("route add {} dev {host_end}", plain(address)))?;
        }
    }
    Ok(())
}

/// Reduces the kernel's state to the names of the links of the host and of each pod with links.
fn names_of_links(after: &mut Value) {
    let names = |state: &Value| -> Value {
        state["links"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, _)| Value::from(name.as_str()))
            .collect()
    };
    after["host"] = names(&after["host"]);
    let pods = after["pods"].as_object().into_iter().flatten();
    let named = pods
        .map(|(pod, state)| (pod.clone(), names(state)))
        .filter(|(_, names)| names != &json!([]));
    after["pods"] = Value::Object(named.collect());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_is_attached_from_its_add_to_its_successful_del() {
        let step = |verb: &str, exit: i32| {
            json!({
                "prog": "calico", "argv": [],
                "env": { "CNI_COMMAND": verb, "CNI_CONTAINERID": "c" }, "stdin": {},
                "exit": exit, "stdout": {}, "after": { "host": {}, "pods": {}, "store": {} },
            })
        };
        let steps = [
            step("ADD", 0),
            step("CHECK", 0),
            step("DEL", 1),
            step("DEL", 0),
        ];
        let recording =
            json!({ "name": "n", "what": "", "datastore": "kdd1", "initial": {}, "steps": steps });
        let recording: Recording = serde_json::from_value(recording).unwrap();
        let attached: Vec<usize> = states(&recording)
            .map(|state| state.attached().count())
            .collect();
        assert_eq!(attached, [1, 1, 1, 0]);
    }
}
