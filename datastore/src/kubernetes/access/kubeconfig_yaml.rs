//! Reads the YAML of kubeconfigs into kube's type. kube's own reader brings a YAML parser along
//! that the programs use for nothing else.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use kube::config::{Kubeconfig, KubeconfigError};
use libcalico::yaml::{TooDeep, documents};
use os::atomic_file::regular_file;
use os::input_file::{self, Limited};
use serde::Deserialize;

use crate::config::ClientPlace;

/// Maximum size of a file in bytes. A person's file may describe many clusters with their
/// certificates.
const MAX_SIZE: usize = 16 << 20;

/// The texts of the pipes that this process has read. A pipe can be read only once, but a command
/// may have several clients, and each of them reads the kubeconfig again after a refused token.
static READ_BEFORE: Mutex<BTreeMap<PathBuf, Vec<u8>>> = Mutex::new(BTreeMap::new());

/// A kubeconfig that cannot be read. The parser's message is left out, because it may quote tokens
/// and passwords.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnreadableKubeconfig {
    #[error("cannot read the file: {0}")]
    File(#[from] io::Error),
    #[error("the text is neither UTF-8 nor UTF-16; write the file again")]
    Encoding,
    /// Text that is not a kubeconfig, with its position, for example `line 3, column 1: `.
    #[error("{0}not the YAML of a kubeconfig, or truncated")]
    Syntax(String),
    #[error(transparent)]
    Depth(#[from] TooDeep),
    #[error("merge keys (<<) of YAML are not supported; write the merged keys into each mapping")]
    MergeKey,
    /// Documents that contradict each other.
    #[error(transparent)]
    Documents(#[from] KubeconfigError),
}

/// Reads a file, which may be a pipe of the shell for the command of a person. Paths in it are
/// relative to its folder.
pub(super) fn read_file(
    file: &Path,
    place: &ClientPlace,
) -> Result<Kubeconfig, UnreadableKubeconfig> {
    let bytes = match place {
        ClientPlace::Workstation(_) => contents_of_person(file, MAX_SIZE)?,
        ClientPlace::Node | ClientPlace::OutsideCluster(_) => {
            regular_file::contents_up_to(file, MAX_SIZE)?
        }
    };
    let text = decode(&bytes).ok_or(UnreadableKubeconfig::Encoding)?;
    let mut kubeconfig = parse(&text)?;
    resolve_paths(&mut kubeconfig, file.parent().unwrap_or(Path::new("")));
    Ok(kubeconfig)
}

/// Reads a file, or a pipe of the shell such as `<(command)`, of at most `limit` bytes. Waits for
/// the program at the other end of a pipe.
fn contents_of_person(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let opened = input_file::open(path)?;
    if opened.metadata()?.is_file() {
        return regular_file::contents_up_to(path, limit);
    }
    let mut read_before = READ_BEFORE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(text) = read_before.get(path) {
        return Ok(text.clone());
    }
    let mut text = Vec::new();
    Limited::new(opened, limit as u64).read_to_end(&mut text)?;
    read_before.insert(path.to_owned(), text.clone());
    Ok(text)
}

/// Parses a text, and merges its documents as kubectl merges files: the first value stays.
pub(super) fn parse(text: &str) -> Result<Kubeconfig, UnreadableKubeconfig> {
    let mut merged = Kubeconfig::default();
    for document in documents(text)? {
        let parsed = Option::<Kubeconfig>::deserialize(document)
            .map_err(|error| parse_error(text, &error))?;
        // Empty documents are null.
        let Some(next) = parsed else { continue };
        if has_merge_key(&next) {
            return Err(UnreadableKubeconfig::MergeKey);
        }
        merged = merged.merge(next)?;
    }
    Ok(merged)
}

fn parse_error(text: &str, error: &serde_norway::Error) -> UnreadableKubeconfig {
    // A mandatory key that comes from a merge key is missing for the parser.
    if text.contains("<<:") {
        return UnreadableKubeconfig::MergeKey;
    }
    let position = error
        .location()
        .map(|at| format!("line {}, column {}: ", at.line(), at.column()));
    UnreadableKubeconfig::Syntax(position.unwrap_or_default())
}

/// Decodes a text by its byte order mark. A text without one is UTF-8.
fn decode(bytes: &[u8]) -> Option<String> {
    let decode_utf16 = |bytes: &[u8], unit: fn([u8; 2]) -> u16| {
        let (pairs, rest) = bytes.as_chunks::<2>();
        let units: Vec<u16> = pairs.iter().map(|pair| unit(*pair)).collect();
        String::from_utf16(&units).ok().filter(|_| rest.is_empty())
    };
    match bytes {
        [0xFF, 0xFE, text @ ..] => decode_utf16(text, u16::from_le_bytes),
        [0xFE, 0xFF, text @ ..] => decode_utf16(text, u16::from_be_bytes),
        [0xEF, 0xBB, 0xBF, text @ ..] => String::from_utf8(text.to_vec()).ok(),
        text => String::from_utf8(text.to_vec()).ok(),
    }
}

/// Returns true if a mapping has the key `<<`. The parser does not add the keys of the other
/// mapping, so that a user could lack the token.
fn has_merge_key(kubeconfig: &Kubeconfig) -> bool {
    let clusters = kubeconfig.clusters.iter().flat_map(|named| {
        let cluster = named.cluster.as_ref();
        [Some(&named.other), cluster.map(|cluster| &cluster.other)]
    });
    let users = kubeconfig.auth_infos.iter().flat_map(|named| {
        let user = named.auth_info.as_ref();
        let plugin = user.and_then(|user| user.exec.as_ref());
        [
            Some(&named.other),
            user.map(|user| &user.other),
            plugin.map(|plugin| &plugin.other),
        ]
    });
    let contexts = kubeconfig.contexts.iter().flat_map(|named| {
        let context = named.context.as_ref();
        [Some(&named.other), context.map(|context| &context.other)]
    });
    let mut unknown_keys = clusters
        .chain(users)
        .chain(contexts)
        .flatten()
        .chain([&kubeconfig.other]);
    unknown_keys.any(|keys| keys.contains_key("<<"))
}

fn resolve_paths(kubeconfig: &mut Kubeconfig, folder: &Path) {
    for cluster in kubeconfig
        .clusters
        .iter_mut()
        .filter_map(|named| named.cluster.as_mut())
    {
        if let Some(path) = &mut cluster.certificate_authority {
            resolve(path, folder);
        }
    }
    for user in kubeconfig
        .auth_infos
        .iter_mut()
        .filter_map(|named| named.auth_info.as_mut())
    {
        let files = [
            &mut user.client_certificate,
            &mut user.client_key,
            &mut user.token_file,
        ];
        files
            .into_iter()
            .flatten()
            .for_each(|path| resolve(path, folder));
        // A command without a slash is looked up in PATH.
        if let Some(command) = user.exec.as_mut().and_then(|exec| exec.command.as_mut())
            && command.contains('/')
        {
            resolve(command, folder);
        }
    }
}

/// Resolves `path` against `folder`. An absolute path stays.
fn resolve(path: &mut String, folder: &Path) {
    if let Some(resolved) = folder.join(path.as_str()).to_str() {
        *path = resolved.to_owned();
    }
}
