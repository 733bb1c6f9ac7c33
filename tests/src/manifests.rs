//! The manifests below `deploy/`, rendered by the programs that operators use: the kustomize in
//! kubectl, an old kustomize, and helm.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::{Context, Result, anyhow, ensure};
use regex::Regex;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::command::run;
use crate::golden::compare::differences;
use crate::golden::marks::Bindings;
use crate::installed::built;
use crate::kubernetes::{ApiServer, program};
use crate::memo::Memo;

/// Objects by their identity, such as `Deployment.apps kube-system/calico-kube-controllers`.
pub type Objects = BTreeMap<String, Value>;

/// The namespace of the manifests.
pub const NAMESPACE: &str = "kube-system";

/// The name of the workloads' configuration, with the hash that kustomize appends.
static HASHED: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\bcalico-cni-config-[a-z0-9]{10}\b").expect("a constant pattern")
});

/// The renderings of the repository's files, by the arguments in JSON. No test changes these files.
static RENDERED: Memo<String, Objects> = Memo::new();

/// Parsed documents by their text. Many renderings contain the same definitions, which are long.
static DOCUMENTS: Memo<String, Vec<Value>> = Memo::new();

/// Returns the path of a file or folder below `deploy/`.
pub fn deploy(path: &str) -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."));
    workspace.join("deploy").join(path)
}

/// Returns the names of the platforms that have a component.
pub fn platforms() -> Result<Vec<String>> {
    names("components/platforms")
}

/// Returns the settings of a platform in the table of docs/platforms: the directories of programs
/// and of the configuration, the API server, and the rights.
pub fn settings_on_page(platform: &str) -> Result<[String; 4]> {
    let page = fs::read_to_string(deploy("../docs/platforms/README.md"))?;
    let name = format!("| [{platform}]({platform}.md) | ");
    let row = page
        .lines()
        .find_map(|line| line.strip_prefix(&name))
        .with_context(|| format!("the table has no row {name}"))?;
    let cells: Vec<String> = row
        .trim_end_matches(" |")
        .split(" | ")
        .map(str::to_owned)
        .collect();
    <[String; 4]>::try_from(cells).map_err(|cells| anyhow!("{platform}: {cells:?}"))
}

/// Returns host and port of the API server that the table of docs/platforms names as an address of
/// each node; nothing if the address depends on the cluster.
pub fn api_server_on_page(platform: &str) -> Result<Option<[String; 2]>> {
    let [_, _, address, _] = settings_on_page(platform)?;
    Ok(address
        .strip_prefix("[`")
        .and_then(|address| address.split_once("`, port "))
        .map(|(host, rest)| {
            let port = rest.chars().take_while(char::is_ascii_digit).collect();
            [host.to_owned(), port]
        }))
}

/// Returns the names of the folders of `deploy/components`; one of them, `platforms`, has the
/// components of platforms.
pub fn components() -> Result<Vec<String>> {
    names("components")
}

/// Returns the sorted names in a folder of `deploy/`.
fn names(folder: &str) -> Result<Vec<String>> {
    let names = fs::read_dir(deploy(folder))?.map(|entry| entry.map(|entry| entry.file_name()));
    let mut names = names
        .map(|name| Ok(name?.to_string_lossy().into_owned()))
        .collect::<Result<Vec<String>>>()?;
    names.sort();
    Ok(names)
}

/// Returns the path of the helm that tests/install-go-tools.sh builds.
pub fn helm() -> Result<PathBuf> {
    built("helm")
}

/// Returns the path of the kubeconform that tests/install-go-tools.sh builds.
pub fn kubeconform() -> Result<PathBuf> {
    built("kubeconform")
}

/// Returns the path of the promtool that tests/install-go-tools.sh builds.
pub fn promtool() -> Result<PathBuf> {
    built("promtool")
}

/// Parses the objects of a YAML text. The hash in the name of the workloads' configuration is
/// removed.
///
/// # Errors
/// Returns an error if, for example, an object occurs twice.
pub fn parse(text: &str) -> Result<Objects> {
    let mut objects = Objects::new();
    let text = HASHED.replace_all(text, "calico-cni-config");
    // The separator remains, because the newline before it may belong to a value. The empty
    // document after it is null.
    for part in text.split_inclusive("\n---\n") {
        let documents = DOCUMENTS.get(part.to_owned(), || documents(part))?;
        for object in documents.iter().filter(|document| !document.is_null()) {
            let identity = identity(object)?;
            ensure!(
                objects.insert(identity.clone(), object.clone()).is_none(),
                "{identity} is there twice"
            );
        }
    }
    Ok(objects)
}

fn documents(text: &str) -> Result<Vec<Value>> {
    let documents = serde_norway::Deserializer::from_str(text);
    documents
        .map(|document| Value::deserialize(document).context("no YAML"))
        .collect()
}

/// Returns the names of the workloads' configuration in a rendering, each once, with their hashes.
pub fn hashed_names(text: &str) -> BTreeSet<String> {
    HASHED
        .find_iter(text)
        .map(|name| name.as_str().to_owned())
        .collect()
}

/// Returns the identity of an object, such as
/// `Deployment.apps kube-system/calico-kube-controllers`.
fn identity(object: &Value) -> Result<String> {
    let field = |value: &Value, name: &str| {
        value[name]
            .as_str()
            .map(str::to_owned)
            .with_context(|| format!("an object has no {name}: {object}"))
    };
    let (version, kind) = (field(object, "apiVersion")?, field(object, "kind")?);
    let group = version
        .split_once('/')
        .map_or(String::new(), |(group, _)| format!(".{group}"));
    let name = field(&object["metadata"], "name")?;
    let namespace = object["metadata"]["namespace"]
        .as_str()
        .map_or(String::new(), |it| format!("{it}/"));
    Ok(format!("{kind}{group} {namespace}{name}"))
}

/// Returns the programs of [`kustomize`]: the current kubectl, and an old kustomize.
pub fn kustomizers() -> Result<[(PathBuf, &'static str); 2]> {
    Ok([
        (program("kubectl")?, "kustomize"),
        (built("kustomize")?, "build"),
    ])
}

/// Renders a folder with each of [`kustomizers`], and expects the same result from both. A folder
/// of `deploy/` is rendered once per process.
pub fn kustomize(folder: &Path) -> Result<Objects> {
    if folder.starts_with(deploy("")) {
        return rendered(&json!({ "folder": folder }), || render(folder));
    }
    render(folder)
}

/// Returns the rendering that `key` identifies.
fn rendered(key: &Value, render: impl FnOnce() -> Result<Objects>) -> Result<Objects> {
    RENDERED
        .get(key.to_string(), render)
        .map(|objects| (*objects).clone())
}

fn render(folder: &Path) -> Result<Objects> {
    let [today, old] = kustomizers()?.map(|(program, verb)| {
        run(
            &program.display().to_string(),
            &[verb.as_ref(), folder.as_os_str()],
        )
    });
    let (today, old) = (today?, old?);
    let parse = |text: &str| parse(text).with_context(|| folder.display().to_string());
    let objects = parse(&today)?;
    if today != old {
        let differ = changes(&objects, &parse(&old)?);
        ensure!(
            differ.is_empty(),
            "{}: the old kustomize makes something else of it: {differ:?}",
            folder.display()
        );
    }
    Ok(objects)
}

/// Writes a kustomization of folders below `deploy/` into a folder, as an operator does, and
/// renders it. Each selection of folders is rendered once per process.
pub fn compose(into: &Path, resources: &[&str], components: &[&str]) -> Result<Objects> {
    // kustomize accepts no absolute paths.
    let up: PathBuf = fs::canonicalize(into)?
        .components()
        .skip(1)
        .map(|_| "..")
        .collect();
    let reached = |name: &&str| -> Result<String> {
        let folder = deploy(name)
            .canonicalize()
            .with_context(|| (*name).to_owned())?;
        Ok(up.join(folder.strip_prefix("/")?).display().to_string())
    };
    let list = |names: &[&str]| names.iter().map(reached).collect::<Result<Vec<String>>>();
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": list(resources)?, "components": list(components)?,
    });
    fs::write(into.join("kustomization.yaml"), kustomization.to_string())?;
    rendered(
        &json!({ "resources": resources, "components": components }),
        || render(into),
    )
}

/// Renders the chart, without the pod of `helm test`, with additional arguments. The same arguments
/// are rendered once per process, so a file among them must not change.
pub fn template(args: &[&str]) -> Result<Objects> {
    let chart = deploy("helm/calico-cni");
    let key = json!({ "chart": args });
    let own: [&OsStr; 6] = [
        "template".as_ref(),
        "calico-cni".as_ref(),
        chart.as_os_str(),
        "--skip-tests".as_ref(),
        "--namespace".as_ref(),
        NAMESPACE.as_ref(),
    ];
    let args: Vec<_> = own
        .into_iter()
        .chain(args.iter().map(AsRef::as_ref))
        .collect();
    rendered(&key, || parse(&run(&helm()?.display().to_string(), &args)?))
}

/// Writes objects into a folder as one manifest for kubectl, and returns the path of the file.
pub fn write_list<'o>(
    directory: &Path,
    objects: impl IntoIterator<Item = &'o Value>,
) -> Result<String> {
    let items: Vec<&Value> = objects.into_iter().collect();
    let file = directory.join("list.json");
    fs::write(
        &file,
        json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string(),
    )?;
    Ok(file.display().to_string())
}

/// Reads the objects of a manifest from the API server. Objects that the server does not have are
/// left out.
pub fn stored(api: &ApiServer, file: &str) -> Result<Objects> {
    let text = api.kubectl(&["get", "--ignore-not-found", "-f", file, "-o", "json"])?;
    if text.is_empty() {
        return Ok(Objects::new());
    }
    let list: Value = serde_json::from_str(&text)?;
    let items = list["items"]
        .as_array()
        .context("kubectl printed no list")?;
    let documents: Vec<String> = items.iter().map(Value::to_string).collect();
    parse(&documents.join("\n---\n"))
}

/// Returns the differences between two sets of objects: JSON pointers that begin with the object's
/// identity.
pub fn changes(before: &Objects, after: &Objects) -> Vec<String> {
    // Most objects are equal, and the comparison of two values is faster than the search for their
    // differences.
    let differing = |objects: &Objects, others: &Objects| {
        let differing = objects
            .iter()
            .filter(|(name, object)| others.get(*name) != Some(*object));
        Value::Object(
            differing
                .map(|(name, object)| (name.clone(), object.clone()))
                .collect(),
        )
    };
    let (before, after) = (differing(before, after), differing(after, before));
    let found = differences(&before, &after, "", &mut Bindings::default());
    found
        .into_iter()
        .map(|change| {
            change
                .path
                .replace("~1", "/")
                .trim_start_matches('/')
                .to_owned()
        })
        .collect()
}

/// Returns the containers of a workload, init containers first.
pub fn containers(workload: &Value) -> Vec<&Value> {
    let pod = &workload["spec"]["template"]["spec"];
    let lists = [&pod["initContainers"], &pod["containers"]];
    lists
        .into_iter()
        .filter_map(Value::as_array)
        .flatten()
        .collect()
}
