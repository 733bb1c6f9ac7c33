//! A round: concurrent calls with faults, then the calls of a runtime after the failed ones.

use std::net::IpAddr;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use integration_tests::journal::journal_entries;
use integration_tests::node::Sandbox;
use integration_tests::plugin::{Outcome, RUNTIMES_LIMIT, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::node_pair::{Live, NodePair};
use super::plan::{self, Job, Task};
use super::{audit, interrupted};

/// Maximum number of calls that replay a node's deferred DELs.
const MAX_REPLAYS: usize = 20;

impl NodePair<'_> {
    pub(crate) fn round(&mut self) -> Result<()> {
        let mut undeleted = interrupted::create(self).context("a state that upstream leaves")?;
        let jobs = plan::jobs(self);
        for node in 0..self.nodes.len() {
            let has_http = self.has_pods();
            let faults = plan::faults(&mut self.rng, has_http);
            self.history
                .push(format!("{}: {faults:?}", self.nodes[node].name));
            self.nodes[node].proxy.arm_all(&faults);
        }
        self.before(&jobs);
        let outcomes = self.at_once(&jobs)?;
        self.nodes.iter().for_each(|node| node.proxy.arm(None));
        for (job, outcome) in jobs.iter().zip(outcomes) {
            undeleted.extend(self.after(job, &outcome)?);
        }
        // The server executes some requests only after their connections were cut.
        self.nodes
            .iter()
            .try_for_each(|node| node.proxy.await_late())?;
        for (node, sandbox) in undeleted {
            self.delete(node, &sandbox)?;
        }
        self.replay()?;
        audit::check(self)
    }

    /// Deletes the Pod objects or network namespaces of some sandboxes before their DEL.
    fn before(&mut self, jobs: &[Job]) {
        for job in jobs {
            let Task::Del(sandbox) = &job.task else {
                continue;
            };
            let (without_pod, without_netns) = (self.rng.u32(..3) == 0, self.rng.u32(..4) == 0);
            let has_successor = jobs
                .iter()
                .any(|other| matches!(&other.task, Task::Add(next) if next.pod == sandbox.pod));
            let is_of_live = self
                .live
                .values()
                .any(|live| live.sandbox.pod == sandbox.pod && live.sandbox != *sandbox);
            if without_pod && !has_successor && !is_of_live {
                self.delete_pod(sandbox);
            }
            if without_netns {
                self.delete_netns(job.node, sandbox);
            }
        }
    }

    fn at_once(&self, jobs: &[Job]) -> Result<Vec<Outcome>> {
        thread::scope(|scope| {
            let started: Vec<_> = jobs
                .iter()
                .map(|job| scope.spawn(|| self.call(job, jobs)))
                .collect();
            let joined = started
                .into_iter()
                .map(|thread| thread.join().expect("no panic in a call"));
            joined.collect()
        })
    }

    fn call(&self, job: &Job, jobs: &[Job]) -> Result<Outcome> {
        let node = &self.nodes[job.node];
        let call = match &job.task {
            Task::Add(sandbox) => node.verb("ADD", sandbox),
            Task::Del(sandbox) => node.verb("DEL", sandbox),
            Task::Check(sandbox) => {
                let result = self
                    .live
                    .get(&sandbox.container_id)
                    .map(|live| live.result.clone());
                node.verb_with("CHECK", sandbox, &json!({ "prevResult": result }))
            }
            Task::Gc => node.verb_with(
                "GC",
                &no_sandbox(),
                &json!({ "cni.dev/valid-attachments": self.valid(job.node, jobs) }),
            ),
            Task::Status => node.verb("STATUS", &no_sandbox()),
        };
        thread::sleep(job.after);
        let started = Instant::now();
        let child = node.spawn(&call)?;
        if let Some(moment) = job.killed {
            thread::sleep(moment);
            // The process is not reaped yet, so no other process has its ID.
            let _ = kill(Pid::from_raw(i32::try_from(child.id())?), Signal::SIGKILL);
        }
        wait(child, started, RUNTIMES_LIMIT).with_context(|| format!("{job:?}"))
    }

    /// Returns the valid attachments for GC: the node's networked sandboxes, and those with an ADD
    /// in this round.
    fn valid(&self, node: usize, jobs: &[Job]) -> Vec<Value> {
        let of_node = self
            .live
            .values()
            .filter(|live| live.node == node)
            .map(|live| &live.sandbox);
        let under_way = jobs
            .iter()
            .filter(|job| job.node == node)
            .filter_map(|job| match &job.task {
                Task::Add(sandbox) => Some(sandbox),
                _ => None,
            });
        let named =
            |sandbox: &Sandbox| json!({ "containerID": sandbox.container_id, "ifname": "eth0" });
        of_node.chain(under_way).map(named).collect()
    }

    /// Records the result of a call. Returns the sandbox that the runtime has to delete now.
    fn after(&mut self, job: &Job, outcome: &Outcome) -> Result<Option<(usize, Sandbox)>> {
        let said = match outcome.exit {
            Some(0) => "success".to_owned(),
            None => "killed".to_owned(),
            Some(code) => format!("{code}: {}", outcome.stdout),
        };
        self.history.push(format!(
            "{} {:?}: {said}\n{}",
            self.nodes[job.node].name, job, outcome.stderr
        ));
        ensure!(
            outcome.exit.is_some() || job.killed.is_some(),
            "ended by a signal: {job:?}"
        );
        ensure!(!outcome.stdout.contains("the plugin panicked"), "{job:?}");
        let succeeded = outcome.exit == Some(0);
        Ok(match &job.task {
            Task::Add(sandbox) if succeeded => {
                let live = Live {
                    node: job.node,
                    sandbox: sandbox.clone(),
                    addresses: addresses(&outcome.answer()),
                    result: outcome.answer(),
                };
                ensure!(
                    live.addresses.len() == 2,
                    "an address of each family: {}",
                    outcome.stdout
                );
                self.live.insert(sandbox.container_id.clone(), live);
                None
            }
            Task::Del(sandbox) if succeeded => {
                if self.live.remove(&sandbox.container_id).is_some() {
                    self.gone.push((job.node, sandbox.clone()));
                }
                None
            }
            Task::Add(sandbox) | Task::Del(sandbox) => Some((job.node, sandbox.clone())),
            Task::Check(_) | Task::Gc | Task::Status => None,
        })
    }

    fn delete(&mut self, node: usize, sandbox: &Sandbox) -> Result<()> {
        let outcome = self.nodes[node].run(&self.nodes[node].verb("DEL", sandbox))?;
        self.history.push(format!(
            "{} DEL {}: {}",
            self.nodes[node].name, sandbox.container_id, outcome.stdout
        ));
        ensure!(
            outcome.exit == Some(0),
            "DEL without a fault fails: {outcome:?}"
        );
        self.live.remove(&sandbox.container_id);
        self.delete_netns(node, sandbox);
        Ok(())
    }

    fn delete_netns(&self, node: usize, sandbox: &Sandbox) {
        // The network namespace may be deleted already.
        let _ = self.nodes[node].on(|host| host.delete_pod(&sandbox.netns));
    }

    /// Lets each node replay its deferred DELs.
    fn replay(&mut self) -> Result<()> {
        for node in &self.nodes {
            for _ in 0..MAX_REPLAYS {
                let entries = node.on(|_| Ok(journal_entries().len()))?;
                if entries == 0 {
                    break;
                }
                let outcome = node.run(&node.verb("STATUS", &no_sandbox()))?;
                self.history.push(format!(
                    "{} STATUS with {entries} entries: {}",
                    node.name, outcome.stderr
                ));
            }
        }
        Ok(())
    }
}

/// Returns a sandbox for a call that is for no sandbox, GC or STATUS.
fn no_sandbox() -> Sandbox {
    Sandbox {
        container_id: "nobody".into(),
        netns: "nobody".into(),
        pod: None,
    }
}

fn addresses(result: &Value) -> Vec<IpAddr> {
    let address = |ip: &Value| ip["address"].as_str()?.split('/').next()?.parse().ok();
    result["ips"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(address)
        .collect()
}
