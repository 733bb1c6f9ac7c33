//! A step: a call, an edit by the tenant, or a pass of garbage collection.

use anyhow::{Result, ensure};
use integration_tests::node::Sandbox;
use integration_tests::plugin::Outcome;
use serde_json::{Value, json};
use ureq::http::Method;

use super::others::addresses;
use super::sandboxes::{Attachment, short};
use super::shared_nodes::SharedNodes;
use super::texts;

impl SharedNodes<'_> {
    pub(crate) fn step(&mut self) -> Result<()> {
        match self.rng.u32(..24) {
            0..=5 => self.add_new(),
            6 => self.add_again(),
            7..=10 => self.delete(),
            11..=13 => self.edit(),
            14 => self.delete_pod(),
            15 => self.move_pod(),
            16..=17 => self.check(),
            18..=19 => self.collect_on_node(),
            20 => self.status(),
            _ => {
                self.history.push("pass".into());
                self.pass()
            }
        }
    }

    /// Adds a new pod. A sandbox whose ADD fails may be deleted later.
    fn add_new(&mut self) -> Result<()> {
        let (namespace, name) = self.names();
        // The node of the pod whose host interface has the same name.
        let node = if name == "p6680456" {
            0
        } else {
            self.rng.usize(..2)
        };
        if !self.tenants_pod(node, &namespace, &name)? {
            return Ok(());
        }
        let attachment = self.attach(node, &namespace, &name)?;
        self.add(attachment)
    }

    fn add_again(&mut self) -> Result<()> {
        let Some(old) = self.any() else { return Ok(()) };
        let Some((namespace, name)) = old.sandbox.pod.clone() else {
            return Ok(());
        };
        let attachment = self.attach(old.node, &namespace, &name)?;
        self.add(attachment)
    }

    fn add(&mut self, mut attachment: Attachment) -> Result<()> {
        let outcome =
            self.nodes[attachment.node].run(&self.call("ADD", &attachment, &Value::Null))?;
        self.note_for("ADD", &attachment, &outcome)?;
        if outcome.exit == Some(0) {
            let got = addresses(&outcome.answer());
            let theirs: Vec<_> = self
                .victims
                .iter()
                .flat_map(|victim| &victim.addresses)
                .collect();
            ensure!(
                !got.iter().any(|ip| theirs.contains(&ip)),
                "the tenant has an address of another: {got:?}"
            );
            if self.rng.bool() {
                self.report(&attachment.sandbox, &got)?;
                attachment.reported = self.uid_of(&attachment.sandbox)?;
            }
            attachment.result = Some(outcome.answer());
        }
        self.attachments.push(attachment);
        Ok(())
    }

    /// Runs DEL for a present or former sandbox.
    fn delete(&mut self) -> Result<()> {
        // The runtime may also delete a container without an ADD.
        let found = if self.rng.u32(..3) == 0 {
            None
        } else {
            self.any()
        };
        let attachment = match found {
            Some(attachment) => attachment,
            None => {
                let (node, (namespace, name)) = (self.rng.usize(..2), self.names());
                if matches!(namespace.as_str(), "prod" | "shop") {
                    return Ok(());
                }
                self.attach(node, &namespace, &name)?
            }
        };
        if self.rng.bool() {
            // The network namespace may be deleted already.
            let _ =
                self.nodes[attachment.node].on(|host| host.delete_pod(&attachment.sandbox.netns));
        }
        let outcome =
            self.nodes[attachment.node].run(&self.call("DEL", &attachment, &Value::Null))?;
        self.note_for("DEL", &attachment, &outcome)?;
        for known in self
            .attachments
            .iter_mut()
            .filter(|known| known.sandbox == attachment.sandbox)
        {
            known.result = None;
        }
        Ok(())
    }

    fn edit(&mut self) -> Result<()> {
        let (annotations, labels) = (self.annotations(), self.labels());
        let (Some(client), Some(attachment)) = (&self.client, self.attachments.last()) else {
            return Ok(());
        };
        let Some((namespace, name)) = &attachment.sandbox.pod else {
            return Ok(());
        };
        let patch = json!({ "metadata": { "annotations": annotations, "labels": labels } });
        let answer = client.patch(
            &format!("/api/v1/namespaces/{namespace}/pods/{name}"),
            &patch,
        )?;
        self.history.push(format!(
            "edit {namespace}/{name}: {} {}",
            answer.code,
            short(&patch)
        ));
        Ok(())
    }

    fn delete_pod(&mut self) -> Result<()> {
        let seconds = if self.rng.bool() { 0 } else { 3600 };
        let Some(attachment) = self.any() else {
            return Ok(());
        };
        let (Some(client), Some((namespace, name))) = (&self.client, &attachment.sandbox.pod)
        else {
            return Ok(());
        };
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let options = json!({ "gracePeriodSeconds": seconds }).to_string();
        let answer = client.request(Method::DELETE, &path, "application/json", &options)?;
        self.history.push(format!(
            "delete {namespace}/{name} in {seconds} s: {}",
            answer.code
        ));
        Ok(())
    }

    fn move_pod(&mut self) -> Result<()> {
        let Some(old) = self.any() else { return Ok(()) };
        let Some((namespace, name)) = old.sandbox.pod.clone() else {
            return Ok(());
        };
        if let Some(client) = &self.client {
            client.delete(&format!("/api/v1/namespaces/{namespace}/pods/{name}"))?;
        }
        let node = 1 - old.node;
        if !self.tenants_pod(node, &namespace, &name)? {
            return Ok(());
        }
        let attachment = self.attach(node, &namespace, &name)?;
        self.add(attachment)
    }

    fn check(&mut self) -> Result<()> {
        let Some(attachment) = self.any() else {
            return Ok(());
        };
        let previous = json!({
            "prevResult": attachment.result.clone().unwrap_or_else(|| json!({ "cniVersion": "1.1.0" }))
        });
        let outcome =
            self.nodes[attachment.node].run(&self.call("CHECK", &attachment, &previous))?;
        self.note_for("CHECK", &attachment, &outcome)
    }

    /// Runs GC with the valid attachments of all owners.
    fn collect_on_node(&mut self) -> Result<()> {
        let node = self.rng.usize(..2);
        let tenants = self
            .attachments
            .iter()
            .filter(|known| known.node == node && known.result.is_some());
        let ids: Vec<String> = tenants
            .map(|known| known.sandbox.container_id.clone())
            .chain(
                self.victims
                    .iter()
                    .map(|victim| victim.container_id.clone()),
            )
            .filter(|id| !id.is_empty())
            .collect();
        let valid: Vec<Value> = ids
            .iter()
            .map(|id| json!({ "containerID": id, "ifname": "eth0" }))
            .collect();
        let call = self.nodes[node].verb_with(
            "GC",
            &no_sandbox(),
            &json!({ "cni.dev/valid-attachments": valid }),
        );
        let outcome = self.nodes[node].run(&call)?;
        self.note(&format!("GC on {node}"), &outcome)
    }

    fn status(&mut self) -> Result<()> {
        let node = self.rng.usize(..2);
        let outcome = self.nodes[node].run(&self.nodes[node].verb("STATUS", &no_sandbox()))?;
        self.note(&format!("STATUS on {node}"), &outcome)
    }

    /// Notes the outcome of a call for a pod, and checks the names in it.
    fn note_for(&mut self, verb: &str, attachment: &Attachment, outcome: &Outcome) -> Result<()> {
        self.note(&format!("{verb} {attachment:?}"), outcome)?;
        let namespace = attachment
            .sandbox
            .pod
            .as_ref()
            .map_or("", |(namespace, _)| namespace.as_str());
        texts::check_owners(self, namespace, &outcome.stdout)
    }

    fn any(&mut self) -> Option<Attachment> {
        self.rng.choice(self.attachments.clone())
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
