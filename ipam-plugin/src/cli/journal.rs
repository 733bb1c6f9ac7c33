//! `journal`: lists the deferred DELs of this node. `journal adopt` assigns deferred DELs to another datastore.

use std::io::Write;
use std::path::PathBuf;
use std::time::SystemTime;

use clap::{Args, Subcommand};
use libcalico::names::{container_interface, interface_prefix, pod_interface};
use serde::Serialize;

use super::error::CliError;
use super::output::{self, Format};
use super::session::{Outcome, Session};
use crate::journal::{Creditor, DEFAULT_DIRECTORY, Debt, Entry, Journal, short_age};

/// List the deferred DELs of this node, or assign deferred DELs to another datastore
///
/// A DEL that cannot reach its datastore, or that the datastore refuses, removes the pod's interface and is deferred:
/// its entry names an endpoint to delete and addresses to release. The next call of the plugin replays the entry, and
/// the agent of the node replays it within a minute. An entry is replayed only on the datastore that it belongs to.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  calico-ipam journal
  calico-ipam journal -o json
  calico-ipam journal adopt 4f1d9c0b --config /etc/cni/net.d/10-calico.conflist
  calico-ipam journal adopt --all --etcd-endpoints http://127.0.0.1:2379

The list needs no datastore. Exit status: 0, or 1 for an error; debts are no error."
)]
pub(super) struct JournalArgs {
    /// The directory of the journal
    #[arg(long, global = true, value_name = "DIR", default_value = DEFAULT_DIRECTORY)]
    directory: PathBuf,
    #[command(subcommand)]
    command: Option<JournalCommand>,
}

#[derive(Debug, Subcommand)]
enum JournalCommand {
    Adopt(AdoptArgs),
}

/// Assign deferred DELs to the datastore of this command, on which they are then replayed
///
/// Use this for deferred DELs whose datastore was moved, so that its identity changed: otherwise their entries stay.
/// The replay releases the addresses of these containers in the datastore, and nothing else. An entry of a container
/// that has its interface again is refused.
#[derive(Debug, Args)]
struct AdoptArgs {
    /// Container IDs, or prefixes of them
    #[arg(value_name = "CONTAINER", required_unless_present = "all", value_parser = container_id)]
    containers: Vec<String>,
    /// All readable entries
    #[arg(long, conflicts_with = "containers")]
    all: bool,
}

/// Returns the ID. An empty ID is refused, because every ID begins with it.
fn container_id(text: &str) -> Result<String, &'static str> {
    match text {
        "" => Err(
            "an empty id is the beginning of every id; name containers that `calico-ipam journal` lists, or write --all",
        ),
        id => Ok(id.to_owned()),
    }
}

/// A deferred DEL as it is listed.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    entry: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    #[serde(flatten)]
    debt: Option<Listed>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    network: String,
    container: String,
    interface: String,
    workload: String,
    node: String,
    addresses: Vec<String>,
    age_seconds: u64,
    datastore: String,
    identity: String,
    reason: String,
}

impl JournalArgs {
    /// Returns true if the command only reads files of this node.
    pub(super) fn is_list(&self) -> bool {
        self.command.is_none()
    }
}

/// Prints the list.
pub(super) fn list(args: &JournalArgs, format: Format, out: &mut dyn Write) -> Result<Outcome, CliError> {
    let rows: Vec<Row> = entries(args)?.into_iter().map(Row::of).collect();
    if output::document(format, out, &rows)? {
        return Ok(Outcome::Fine);
    }
    if rows.is_empty() {
        writeln!(out, "No DEL of this node owes anything").map_err(CliError::Output)?;
        return Ok(Outcome::Fine);
    }
    let mut table = output::table(["CONTAINER", "INTERFACE", "WORKLOAD", "NODE", "AGE", "DATASTORE", "REASON"]);
    for row in &rows {
        let cells = match &row.debt {
            Some(debt) => [
                debt.container.clone(),
                debt.interface.clone(),
                debt.workload.clone(),
                debt.node.clone(),
                short_age(std::time::Duration::from_secs(debt.age_seconds)),
                [debt.datastore.as_str(), debt.identity.as_str()].join("\n").trim_end().to_owned(),
                debt.reason.clone(),
            ],
            None => {
                let problem = row.problem.as_deref().unwrap_or_default();
                let reason = format!("{} cannot be read: {problem}", row.entry);
                [String::new(), String::new(), String::new(), String::new(), String::new(), String::new(), reason]
            }
        };
        table.add_row(cells.map(output::cell));
    }
    output::print_table(out, &table)?;
    Ok(Outcome::Fine)
}

pub(super) async fn run(args: &JournalArgs, session: &mut Session<'_>) -> Result<Outcome, CliError> {
    match &args.command {
        None => list(args, session.format, session.out),
        Some(JournalCommand::Adopt(adopt)) => self::adopt(args, adopt, session).await,
    }
}

async fn adopt(args: &JournalArgs, adopt: &AdoptArgs, session: &mut Session<'_>) -> Result<Outcome, CliError> {
    if session.is_new {
        return Err(CliError::NoSuchFile { datastore: session.datastore.clone() });
    }
    let no_identity = || CliError::NoIdentity { datastore: session.datastore.clone() };
    let identity = session.store.identity().await?.ok_or_else(no_identity)?;
    let creditor = Creditor { name: session.spelling.clone(), identity };
    let journal = Journal::new(&args.directory);
    let locked = journal.lock()?;
    let debts: Vec<(PathBuf, Debt)> =
        entries(args)?.into_iter().filter_map(|entry| Some((entry.path, entry.debt.ok()?))).collect();
    for container in &adopt.containers {
        if !debts.iter().any(|(_, debt)| debt.container_id.starts_with(container)) {
            return Err(CliError::NoDebt { container: container.clone() });
        }
    }
    let is_chosen = |debt: &Debt| adopt.all || adopt.containers.iter().any(|id| debt.container_id.starts_with(id));
    let mut chosen = Vec::new();
    for (entry, debt) in debts.iter().filter(|(_, debt)| is_chosen(debt)) {
        let Some(interface) = living_interface(session, debt) else {
            chosen.push((entry, debt));
            continue;
        };
        let (container, entry) = (debt.container_id.clone(), entry.display().to_string());
        let living = CliError::Living { container, interface, entry };
        match adopt.all {
            true => session.notice(format_args!("note: left as it is: {living}")),
            false => return Err(living),
        }
    }
    // This comes before the first entry is assigned, so that no entry is missed if this command ends early. Calls of
    // the plugin then read the identities of their datastores again and find the entries that belong to these now.
    let directory = args.directory.display().to_string();
    journal.forget_datastores().map_err(|cause| CliError::File { what: "write", path: directory, cause })?;
    for (entry, debt) in chosen {
        locked.adopt(entry, &creditor)?;
        let former = if debt.identity.is_empty() { "unknown" } else { &debt.identity };
        session.say(format_args!(
            "the debt of {} (container {}) is now owed to {} ({}); before: {} ({former})",
            debt.workload(),
            debt.container_id,
            creditor.name,
            creditor.identity,
            debt.datastore,
        ))?;
    }
    Ok(Outcome::Fine)
}

/// Returns the interface of the container, if an ADD has created one since the DEL was deferred.
fn living_interface(session: &mut Session<'_>, debt: &Debt) -> Option<String> {
    let prefixes = std::env::var("FELIX_INTERFACEPREFIX").ok();
    let name = match debt.pod() {
        Some((namespace, pod)) => pod_interface(interface_prefix(prefixes.as_deref()), namespace, &pod),
        None => container_interface(&debt.container_id),
    };
    match session.links.find(&name) {
        Ok(link) => {
            link.filter(|link| link.container_id.as_ref().is_none_or(|id| *id == debt.container_id)).map(|_| name)
        }
        Err(reason) => {
            session.notice(format_args!("note: nobody looked whether {name} is there again: {reason}"));
            None
        }
    }
}

fn entries(args: &JournalArgs) -> Result<Vec<Entry>, CliError> {
    let path = args.directory.display().to_string();
    Journal::new(&args.directory).entries().map_err(|cause| CliError::File { what: "read", path, cause })
}

impl Row {
    fn of(Entry { path, touched, debt }: Entry) -> Row {
        let entry = path.display().to_string();
        match debt {
            Err(error) => Row { entry, problem: Some(error.to_string()), debt: None },
            Ok(debt) => Row { entry, problem: None, debt: Some(Listed::of(debt, touched)) },
        }
    }
}

impl Listed {
    fn of(debt: Debt, touched: SystemTime) -> Listed {
        Listed {
            workload: debt.workload(),
            age_seconds: debt.age(touched).as_secs(),
            network: debt.network,
            container: debt.container_id,
            interface: debt.ifname,
            node: debt.node,
            addresses: debt.addresses.iter().map(ToString::to_string).collect(),
            datastore: debt.datastore,
            identity: debt.identity,
            reason: debt.reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::testing::Shell;
    use crate::host_link::{HostLink, HostLinks};

    fn noted(shell: &Shell, container_id: &str, datastore: &str) -> String {
        let directory = shell.dir.path().join("journal");
        let debt = Debt {
            network: "net1".into(),
            container_id: container_id.into(),
            ifname: "eth0".into(),
            node: "node1".into(),
            datastore: datastore.into(),
            identity: "etcd 1".into(),
            endpoint: ("team".into(), "node1-k8s-web-eth0".into()),
            addresses: vec!["10.0.0.1".parse().unwrap()],
            noted: 1,
            reason: "it is away".into(),
            ..Debt::default()
        };
        Journal::new(&directory).record(&debt).unwrap();
        directory.display().to_string()
    }

    #[test]
    fn the_list_has_age_datastore_and_reason_of_each_debt_and_names_entries_that_cannot_be_read() {
        let shell = Shell::new();
        let nothing = shell.dir.path().join("none").display().to_string();
        assert_eq!(shell.ok(&["journal", "--directory", &nothing]), "No DEL of this node owes anything\n");
        let directory = noted(&shell, "c1", "etcd http://a:2379");
        std::fs::write(format!("{directory}/x.json"), "{").unwrap();
        let table = shell.ok(&["journal", "--directory", &directory]);
        for text in ["c1", "pod team/web", "etcd http://a:2379", "etcd 1", "it is away", "x.json cannot be read: "] {
            assert!(table.contains(text), "{text}: {table}");
        }
        let rows = shell.json(&["journal", "--directory", &directory]);
        let rows = rows.as_array().unwrap();
        let debt = rows.iter().find(|row| row["container"] == "c1").unwrap();
        assert!(debt["ageSeconds"].as_u64().unwrap() > 1_000_000);
        assert_eq!(debt["addresses"], serde_json::json!(["10.0.0.1"]));
        assert!(rows.iter().any(|row| row["problem"].is_string()));
    }

    #[test]
    fn adopt_gives_the_named_debts_to_the_datastore_that_it_reaches() {
        let shell = Shell::new();
        for id in ["c1", "c2", "d1"] {
            noted(&shell, id, "etcd http://a:2379");
        }
        let directory = shell.dir.path().join("journal").display().to_string();
        let owned = || {
            let rows = shell.json(&["journal", "--directory", &directory]);
            let own = |row: &&serde_json::Value| row["identity"].as_str().unwrap().starts_with("local ");
            let mut ids: Vec<String> = rows
                .as_array()
                .unwrap()
                .iter()
                .filter(own)
                .map(|row| row["container"].as_str().unwrap().into())
                .collect();
            ids.sort();
            ids
        };
        let ran = shell.run(&["journal", "adopt", "c", "x", "--directory", &directory]);
        assert_eq!(
            ran.outcome.unwrap_err(),
            "no debt of a container whose id begins with x is in the journal; `calico-ipam journal` lists them"
        );
        assert!(owned().is_empty());
        let said = shell.ok(&["journal", "adopt", "c", "--directory", &directory]);
        assert!(said.contains("the debt of pod team/web (container c1) is now owed to local /x.db (local "), "{said}");
        assert_eq!(owned(), ["c1", "c2"]);
        shell.ok(&["journal", "adopt", "--all", "--directory", &directory]);
        assert_eq!(owned(), ["c1", "c2", "d1"]);
    }

    /// The kernel has the interface of one pod.
    #[derive(Debug)]
    struct OneLink;

    impl HostLinks for OneLink {
        fn find(&self, name: &str) -> Result<Option<HostLink>, String> {
            Ok((name == pod_interface("cali", "team", "web")).then(HostLink::default))
        }
    }

    #[test]
    fn adopt_of_a_container_that_has_its_interface_again_is_refused_before_anything_is_written() {
        let shell = Shell::new();
        let directory = noted(&shell, "c1", "etcd http://a:2379");
        let of_container = Debt { container_id: "c2".into(), identity: "etcd 1".into(), ..Debt::default() };
        Journal::new(&directory).record(&of_container).unwrap();
        let run = |containers: &[&str]| {
            let line = [&["journal", "adopt"], containers, &["--directory", &directory]].concat();
            shell.run_with(&line, |session| session.links = &OneLink)
        };
        let refused = run(&["c2", "c1"]).outcome.unwrap_err();
        assert!(refused.starts_with("container c1 has its interface "), "{refused}");
        let listed = shell.ok(&["journal", "--directory", &directory]);
        assert!(!listed.contains("local "), "{listed}");
        let all = run(&["--all"]);
        assert!(all.notices.contains("left as it is: container c1"), "{}", all.notices);
        assert!(all.out.contains("(container c2) is now owed to local /x.db"), "{}", all.out);
        assert!(all.out.contains("; before:  (etcd 1)") && !all.out.contains("container c1"), "{}", all.out);
    }

    #[test]
    fn adopt_for_a_file_that_does_not_exist_is_refused() {
        let shell = Shell::new();
        let directory = noted(&shell, "c1", "etcd http://a:2379");
        let line = ["journal", "adopt", "--all", "--directory", &directory];
        let ran = shell.run_with(&line, |session| session.is_new = true);
        assert!(ran.outcome.unwrap_err().starts_with("the test's does not exist"));
        assert!(!shell.ok(&["journal", "--directory", &directory]).contains("local "));
    }

    #[test]
    fn adopt_for_a_file_that_does_not_exist_leaves_no_file_behind() {
        let shell = Shell::new();
        let directory = noted(&shell, "c1", "etcd http://a:2379");
        let away = tempfile::tempdir().unwrap();
        let path = away.path().join("calico.db").display().to_string();
        let line = ["calico-ipam", "journal", "adopt", "c1", "--directory", &directory, "--datastore-path", &path];
        let arguments = crate::cli::Arguments::try_parse_from(line).unwrap();
        let error = crate::cli::run(arguments, &OneLink, &mut Vec::new()).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "{path} does not exist, so nothing can be owed to it; name the datastore that the debts are owed to"
            )
        );
        assert_eq!(std::fs::read_dir(away.path()).unwrap().count(), 0);
    }

    #[test]
    fn adopt_of_an_empty_id_is_refused_with_the_argument_and_the_way_out() {
        let words = ["calico-ipam", "journal", "adopt", ""];
        let error = crate::cli::Arguments::try_parse_from(words).unwrap_err().to_string();
        for text in ["'[CONTAINER]...'", "an empty id is the beginning of every id", "calico-ipam journal", "--all"] {
            assert!(error.contains(text), "{text}: {error}");
        }
    }

    #[test]
    fn the_list_of_a_directory_that_cannot_be_read_is_an_error_and_no_empty_list() {
        let shell = Shell::new();
        let directory = shell.file("journal", "");
        let error = shell.error(&["journal", "--directory", &directory]);
        assert!(error.starts_with(&format!("read {directory}: ")), "{error}");
        let refused = shell.error(&["journal", "adopt", "--all", "--directory", &directory]);
        assert!(refused.contains(&directory), "{refused}");
    }
}
