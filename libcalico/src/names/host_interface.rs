//! The name of the host end of an interface pair, and its alias.

use std::fmt;

use data_encoding::HEXLOWER;
use sha1::{Digest, Sha1};
use sha2::Sha256;

/// The prefix of host interfaces, unless `FELIX_INTERFACEPREFIX` sets another for pods.
pub const DEFAULT_INTERFACE_PREFIX: &str = "cali";

/// The number of characters after the prefix. With `cali` they fill the 15 characters that the
/// kernel allows.
const SUFFIX: usize = 11;

/// Returns the first entry of `FELIX_INTERFACEPREFIX`, or the default (CNI-88).
pub fn interface_prefix(felix_interface_prefix: Option<&str>) -> &str {
    match felix_interface_prefix {
        Some(list) if !list.is_empty() => {
            list.split(',').next().unwrap_or(DEFAULT_INTERFACE_PREFIX)
        }
        _ => DEFAULT_INTERFACE_PREFIX,
    }
}

/// Returns the host interface of a Kubernetes pod (CNI-88). Every attachment of a pod gets the same
/// name.
pub fn pod_interface(prefix: &str, namespace: &str, pod: &str) -> String {
    let digest = HEXLOWER.encode(&Sha1::digest(format!("{namespace}.{pod}")));
    format!("{prefix}{}", &digest[..SUFFIX])
}

/// Returns the host interface of a container that is not a pod. It ignores `FELIX_INTERFACEPREFIX`
/// (CNI-89).
pub fn container_interface(container_id: &str) -> String {
    let suffix: String = container_id.chars().take(SUFFIX).collect();
    format!("{DEFAULT_INTERFACE_PREFIX}{suffix}")
}

const PREFIX: &str = "calico-cni";
const SEPARATOR: char = '/';
/// The maximum length in bytes of a container ID that the alias contains unchanged.
const LONGEST_ID: usize = 64;
/// The prefix of a digest that replaces a container ID. An unchanged ID contains no colon.
const DIGEST: &str = "sha256:";
const DIGEST_LENGTH: usize = 64;

/// The text that ADD sets as alias on the host end of an interface pair.
///
/// The name of a pod's host interface contains 44 bits of a hash, so two pods may share a name. The
/// sandboxes of one pod always do. The alias distinguishes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceAlias {
    container: String,
    pod: String,
}

impl InterfaceAlias {
    /// Returns the alias of a pod's interface.
    pub fn for_pod(network: &str, namespace: &str, pod: &str, container_id: &str) -> Self {
        InterfaceAlias {
            container: container_part(container_id),
            pod: digest(&[network, namespace, pod]),
        }
    }

    /// Returns the alias of the interface of a container that is not a pod.
    pub fn for_container(container_id: &str) -> Self {
        InterfaceAlias {
            container: container_part(container_id),
            pod: digest(&["", "", container_id]),
        }
    }

    /// Parses the alias of an interface; `None` if it is not one of ours.
    pub fn parse(text: &str) -> Option<Self> {
        let (container, pod) = text
            .strip_prefix(PREFIX)?
            .strip_prefix(SEPARATOR)?
            .split_once(SEPARATOR)?;
        let is_container = container
            .strip_prefix(DIGEST)
            .map_or_else(|| is_short_id(container), is_digest);
        (is_container && is_digest(pod)).then(|| InterfaceAlias {
            container: container.into(),
            pod: pod.into(),
        })
    }

    /// Returns the container ID, or a digest in place of an ID that is too long or invalid.
    pub fn container(&self) -> &str {
        &self.container
    }

    /// Returns the container ID; `None` if the alias contains a digest of it.
    pub fn container_id(&self) -> Option<&str> {
        Some(self.container.as_str()).filter(|container| is_short_id(container))
    }

    /// Returns true if the interface was created for this container.
    pub fn is_of_container(&self, container_id: &str) -> bool {
        self.container == container_part(container_id)
    }

    /// Returns true if both interfaces were created for the same pod in the same network, or for
    /// the same container.
    pub fn is_of_same_pod(&self, other: &InterfaceAlias) -> bool {
        self.pod == other.pod
    }
}

impl fmt::Display for InterfaceAlias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{PREFIX}{SEPARATOR}{}{SEPARATOR}{}",
            self.container, self.pod
        )
    }
}

fn container_part(id: &str) -> String {
    if is_short_id(id) {
        id.to_owned()
    } else {
        format!("{DIGEST}{}", HEXLOWER.encode(&Sha256::digest(id)))
    }
}

/// Returns true for an ID that the alias contains unchanged.
fn is_short_id(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    !text.is_empty() && text.len() <= LONGEST_ID && text.bytes().all(allowed)
}

fn is_digest(text: &str) -> bool {
    text.len() == DIGEST_LENGTH
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Includes the lengths, so that different lists never hash the same bytes.
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

    #[test]
    fn pod_interface_names_match_upstreams_vectors() {
        for (namespace, pod, name) in [
            ("namespace", "podname", "cali82111e10a96"),
            ("default", "nginx", "calic440f455693"),
            ("test", "test-pod-1", "cali618a041cd51"),
            ("default", "web-0", "cali0d7763386da"),
            ("ns", "p", "cali0ad56bf5e97"),
            ("golden", "web-1", "calie4cf1310d2b"),
        ] {
            assert_eq!(pod_interface(interface_prefix(None), namespace, pod), name);
        }
        assert_eq!(
            pod_interface(
                interface_prefix(Some("eni,veth,foo")),
                "namespace",
                "podname"
            ),
            "eni82111e10a96"
        );
        assert_eq!(interface_prefix(Some("")), "cali");
    }

    #[test]
    fn container_interface_name_has_eleven_characters_of_the_id() {
        assert_eq!(container_interface("c0ffee0100000000"), "calic0ffee01000");
        assert_eq!(container_interface("abc"), "caliabc");
        assert_eq!(container_interface("ääääääääääää"), "caliäääääääääää");
    }

    const LONGEST_ALIAS: usize = 255;

    #[test]
    fn alias_contains_the_container_and_a_digest_of_the_pod() {
        let alias = InterfaceAlias::for_pod("k8s-pod-network", "team-a", "web-0", "c0ffee");
        assert!(
            alias.to_string().starts_with("calico-cni/c0ffee/"),
            "{alias}"
        );
        assert_eq!(
            alias.to_string().len(),
            "calico-cni/c0ffee/".len() + DIGEST_LENGTH
        );
        assert!(alias.is_of_container("c0ffee") && !alias.is_of_container("c0ffe"));
    }

    #[test]
    fn pods_with_colliding_interface_names_have_distinct_aliases() {
        let of = |pod: &str| InterfaceAlias::for_pod("net", "team-a", pod, "c1");
        let name = |pod: &str| crate::names::pod_interface("cali", "team-a", pod);
        assert_eq!(
            (name("p723961"), name("p6680456")),
            ("calib3d7af96bd3".into(), "calib3d7af96bd3".into())
        );
        assert!(!of("p723961").is_of_same_pod(&of("p6680456")));
    }

    #[test]
    fn aliases_of_two_sandboxes_of_a_pod_differ_only_in_the_container() {
        let of = |network: &str, namespace: &str, pod: &str, id: &str| {
            InterfaceAlias::for_pod(network, namespace, pod, id)
        };
        let (old, new) = (of("net", "ns", "pod", "c1"), of("net", "ns", "pod", "c2"));
        assert!(old.is_of_same_pod(&new) && old != new);
        for other in [
            of("net2", "ns", "pod", "c1"),
            of("net", "ns2", "pod", "c1"),
            of("net", "ns", "pod2", "c1"),
        ] {
            assert!(!old.is_of_same_pod(&other) && other.is_of_container("c1"));
        }
        assert!(
            !of("a", "bc", "d", "c1").is_of_same_pod(&of("ab", "c", "d", "c1")),
            "texts have bounds"
        );
        assert!(
            !InterfaceAlias::for_container("c1")
                .is_of_same_pod(&InterfaceAlias::for_container("c2"))
        );
    }

    #[test]
    fn alias_distinguishes_a_long_container_id_from_its_digest() {
        let long = "a".repeat(65);
        let alias = InterfaceAlias::for_container(&long);
        assert!(alias.is_of_container(&long) && !alias.is_of_container(&"a".repeat(64)));
        let digest = alias.container().to_owned();
        assert!(digest.starts_with("sha256:"), "{digest}");
        assert_eq!(
            (
                alias.container_id(),
                InterfaceAlias::for_container("c1").container_id()
            ),
            (None, Some("c1"))
        );
        assert!(!alias.is_of_container(&digest), "a container of this id");
    }

    #[test]
    fn foreign_interface_aliases_do_not_parse() {
        let ours = InterfaceAlias::for_container("c1").to_string();
        assert!(InterfaceAlias::parse(&ours).is_some());
        let others = [
            "",
            "uplink",
            "calico-cni",
            "calico-cni//",
            "calico-cni/c1/",
            "calico-cni/c1/00",
            "calico-cni/c 1/",
        ];
        for text in others.iter().map(ToString::to_string).chain([
            format!("{ours}0"),
            format!(" {ours}"),
            ours.to_uppercase(),
        ]) {
            assert_eq!(InterfaceAlias::parse(&text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn alias_of_any_names_fits_the_kernel_limit_and_round_trips(
            network in any::<String>(), namespace in any::<String>(), pod in any::<String>(),
            id in any::<String>(),
        ) {
            for alias in [
                InterfaceAlias::for_pod(&network, &namespace, &pod, &id),
                InterfaceAlias::for_container(&id),
            ] {
                let text = alias.to_string();
                prop_assert!(
                    text.len() <= LONGEST_ALIAS && text.chars().all(|c| c.is_ascii_graphic()),
                    "{text:?}",
                );
                prop_assert!(alias.is_of_container(&id));
                prop_assert_eq!(InterfaceAlias::parse(&text), Some(alias));
            }
        }

        #[test]
        fn texts_in_the_form_of_an_alias_parse_and_print_unchanged(
            text in "(calico-cni/)?([-a-z0-9._]{0,70}|sha256:[0-9a-f]{63,64}|\\PC{0,80})(/[0-9a-f]{64})?",
        ) {
            let form = "^calico-cni/([-A-Za-z0-9._]{1,64}|sha256:[0-9a-f]{64})/[0-9a-f]{64}$";
            let is_alias = regex::Regex::new(form).unwrap().is_match(&text);
            prop_assert_eq!(
                InterfaceAlias::parse(&text).map(|alias| alias.to_string()),
                is_alias.then_some(text),
            );
        }

        #[test]
        fn alias_matches_only_its_own_container(one in "[a-z0-9:._-]{0,70}", other in "[a-z0-9:._-]{0,70}") {
            let alias = InterfaceAlias::for_container(&one);
            prop_assert_eq!(alias.is_of_container(&other), one == other);
        }
    }

    /// Interfaces of running pods keep the alias of the version that created them.
    #[test]
    fn aliases_of_0_1_0_are_parsed_and_written_unchanged() {
        let stored = include_str!("../../../tests/formats/0.1.0/interface-aliases.txt");
        let (id, long) = ("c0ffee01".repeat(8), "c0ffee01".repeat(9));
        let pod = |id: &str| InterfaceAlias::for_pod("k8s-pod-network", "team-a", "web-0", id);
        let written = [pod(&id), InterfaceAlias::for_container(&id), pod(&long)];
        let parsed: Vec<_> = stored.lines().filter_map(InterfaceAlias::parse).collect();
        assert_eq!(parsed, written);
        let texts: String = written.iter().map(|alias| format!("{alias}\n")).collect();
        assert_eq!(texts, stored);
    }
}
