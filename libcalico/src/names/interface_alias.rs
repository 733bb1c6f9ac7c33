//! Alias of a host interface: the container and the pod that the interface was made for.

use std::fmt;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

/// Begins each alias of ours.
const PREFIX: &str = "calico-cni";
/// Separates the parts.
const SEPARATOR: char = '/';
/// Longest container id that stands in the alias as it is, in bytes.
const LONGEST_ID: usize = 64;
/// Begins the container's part where a digest stands for the id. No id that stands there as it is has a colon.
const DIGEST: &str = "sha256:";
/// Length of a digest in hexadecimal.
const DIGEST_LENGTH: usize = 64;

/// Text that ADD leaves on the host end of an interface pair; `ip link` shows it.
///
/// The name of a pod's host interface is 44 bits of a hash, so that pods may share it, and a pod's sandboxes always do. The alias
/// tells them apart. At most 255 bytes, which the kernel allows, of letters, digits and `-./:_`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceAlias {
    container: String,
    pod: String,
}

impl InterfaceAlias {
    /// Alias of a pod's interface.
    pub fn for_pod(network: &str, namespace: &str, pod: &str, container_id: &str) -> Self {
        InterfaceAlias { container: container_part(container_id), pod: digest(&[network, namespace, pod]) }
    }

    /// Alias of the interface of a container that is no pod, and so is a pod of its own. All its networks share the interface.
    pub fn for_container(container_id: &str) -> Self {
        InterfaceAlias { container: container_part(container_id), pod: digest(&["", "", container_id]) }
    }

    /// Reads the alias of an interface; `None` for a text of another program.
    pub fn parse(text: &str) -> Option<Self> {
        let (container, pod) = text.strip_prefix(PREFIX)?.strip_prefix(SEPARATOR)?.split_once(SEPARATOR)?;
        let is_container = match container.strip_prefix(DIGEST) {
            Some(digest) => is_digest(digest),
            None => is_short_id(container),
        };
        (is_container && is_digest(pod)).then(|| InterfaceAlias { container: container.into(), pod: pod.into() })
    }

    /// Container id, or its digest where the id is long.
    pub fn container(&self) -> &str {
        &self.container
    }

    /// Returns true if the interface was made for this container.
    pub fn is_of_container(&self, container_id: &str) -> bool {
        self.container == container_part(container_id)
    }

    /// Returns true if both interfaces were made for sandboxes of one pod.
    pub fn is_of_same_pod(&self, other: &InterfaceAlias) -> bool {
        self.pod == other.pod
    }
}

impl fmt::Display for InterfaceAlias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{SEPARATOR}{}{SEPARATOR}{}", self.container, self.pod)
    }
}

fn container_part(id: &str) -> String {
    if is_short_id(id) { id.to_owned() } else { format!("{DIGEST}{}", HEXLOWER.encode(&Sha256::digest(id))) }
}

/// The characters are those that CNI allows in a container id.
fn is_short_id(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    !text.is_empty() && text.len() <= LONGEST_ID && text.bytes().all(allowed)
}

fn is_digest(text: &str) -> bool {
    text.len() == DIGEST_LENGTH && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Digest of several texts. Their lengths are part of it, so that no two lists of texts have the same.
fn digest(texts: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for text in texts {
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text);
    }
    HEXLOWER.encode(&hasher.finalize())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LONGEST_ALIAS: usize = 255;

    #[test]
    fn an_alias_names_container_and_pod() {
        let alias = InterfaceAlias::for_pod("k8s-pod-network", "team-a", "web-0", "c0ffee");
        assert!(alias.to_string().starts_with("calico-cni/c0ffee/"), "{alias}");
        assert_eq!(alias.to_string().len(), "calico-cni/c0ffee/".len() + DIGEST_LENGTH);
        assert!(alias.is_of_container("c0ffee") && !alias.is_of_container("c0ffe"));
    }

    #[test]
    fn pods_whose_interfaces_share_a_name_have_aliases_of_different_pods() {
        let of = |pod: &str| InterfaceAlias::for_pod("net", "team-a", pod, "c1");
        let name = |pod: &str| crate::names::pod_interface("cali", "team-a", pod);
        assert_eq!((name("p723961"), name("p6680456")), ("calib3d7af96bd3".into(), "calib3d7af96bd3".into()));
        assert!(!of("p723961").is_of_same_pod(&of("p6680456")));
    }

    #[test]
    fn sandboxes_of_a_pod_differ_in_the_container_alone() {
        let of =
            |network: &str, namespace: &str, pod: &str, id: &str| InterfaceAlias::for_pod(network, namespace, pod, id);
        let (old, new) = (of("net", "ns", "pod", "c1"), of("net", "ns", "pod", "c2"));
        assert!(old.is_of_same_pod(&new) && old != new);
        for other in [of("net2", "ns", "pod", "c1"), of("net", "ns2", "pod", "c1"), of("net", "ns", "pod2", "c1")] {
            assert!(!old.is_of_same_pod(&other) && other.is_of_container("c1"));
        }
        assert!(!of("a", "bc", "d", "c1").is_of_same_pod(&of("ab", "c", "d", "c1")), "texts have bounds");
        assert!(!InterfaceAlias::for_container("c1").is_of_same_pod(&InterfaceAlias::for_container("c2")));
    }

    #[test]
    fn a_long_id_and_its_digest_are_different_containers() {
        let long = "a".repeat(65);
        let alias = InterfaceAlias::for_container(&long);
        assert!(alias.is_of_container(&long) && !alias.is_of_container(&"a".repeat(64)));
        let digest = alias.container().to_owned();
        assert!(digest.starts_with("sha256:"), "{digest}");
        assert!(!alias.is_of_container(&digest), "a container of this id");
    }

    #[test]
    fn texts_of_others_are_no_aliases() {
        let ours = InterfaceAlias::for_container("c1").to_string();
        assert!(InterfaceAlias::parse(&ours).is_some());
        let others =
            ["", "uplink", "calico-cni", "calico-cni//", "calico-cni/c1/", "calico-cni/c1/00", "calico-cni/c 1/"];
        for text in
            others.iter().map(ToString::to_string).chain([format!("{ours}0"), format!(" {ours}"), ours.to_uppercase()])
        {
            assert_eq!(InterfaceAlias::parse(&text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_texts_make_an_alias_that_the_kernel_takes_and_that_reads_back(
            network in any::<String>(), namespace in any::<String>(), pod in any::<String>(), id in any::<String>(),
        ) {
            for alias in [InterfaceAlias::for_pod(&network, &namespace, &pod, &id), InterfaceAlias::for_container(&id)] {
                let text = alias.to_string();
                prop_assert!(text.len() <= LONGEST_ALIAS && text.chars().all(|c| c.is_ascii_graphic()), "{text:?}");
                prop_assert!(alias.is_of_container(&id));
                prop_assert_eq!(InterfaceAlias::parse(&text), Some(alias));
            }
        }

        #[test]
        fn what_is_read_as_an_alias_is_written_as_it_was(text in "(calico-cni/)?\\PC{0,80}(/[0-9a-f]{64})?") {
            if let Some(alias) = InterfaceAlias::parse(&text) {
                prop_assert_eq!(alias.to_string(), text);
            }
        }

        #[test]
        fn different_containers_have_different_parts(one in "[a-z0-9:._-]{0,70}", other in "[a-z0-9:._-]{0,70}") {
            let alias = InterfaceAlias::for_container(&one);
            prop_assert_eq!(alias.is_of_container(&other), one == other);
        }
    }
}
