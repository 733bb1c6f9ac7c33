//! The URL of a request.

/// A collection or one of its objects, parsed from a URL path.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target<'a> {
    /// Group and version, `v1` alone for the core group.
    pub(super) group: String,
    pub(super) namespace: Option<&'a str>,
    pub(super) plural: &'a str,
    pub(super) name: Option<&'a str>,
}

impl<'a> Target<'a> {
    pub(super) fn parse(path: &'a str) -> Option<Target<'a>> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ((*version).to_owned(), rest),
            ["apis", group, version, rest @ ..] => (format!("{group}/{version}"), rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some(*namespace), rest),
            rest => (None, rest),
        };
        match rest {
            [plural] => Some(Target {
                group,
                namespace,
                plural,
                name: None,
            }),
            [plural, name] | [plural, name, "status"] => Some(Target {
                group,
                namespace,
                plural,
                name: Some(name),
            }),
            _ => None,
        }
    }

    pub(super) fn key(&self) -> Option<String> {
        self.name.map(|name| key(self.namespace, name))
    }
}

pub(super) fn key(namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(
        || name.to_owned(),
        |namespace| format!("{namespace}/{name}"),
    )
}

/// Returns the unescaped value of a query parameter.
pub(super) fn parameter(query: &str, name: &str) -> Option<String> {
    let value = query
        .split('&')
        .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
    let mut text = Vec::new();
    let mut bytes = value.bytes();
    while let Some(byte) = bytes.next() {
        let hex = |byte: Option<u8>| char::from(byte?).to_digit(16);
        text.push(match byte {
            b'%' => (hex(bytes.next())? * 16 + hex(bytes.next())?) as u8,
            byte => byte,
        });
    }
    String::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_parsed_into_target_and_parameters() {
        let target = |group: &str, namespace, plural, name| {
            Some(Target {
                group: group.into(),
                namespace,
                plural,
                name,
            })
        };
        for (path, expected) in [
            ("/api/v1/pods", target("v1", None, "pods", None)),
            ("/api/v1/namespaces", target("v1", None, "namespaces", None)),
            (
                "/api/v1/namespaces/a",
                target("v1", None, "namespaces", Some("a")),
            ),
            (
                "/api/v1/namespaces/a/pods/p/status",
                target("v1", Some("a"), "pods", Some("p")),
            ),
            (
                "/apis/g.io/v1/things/x",
                target("g.io/v1", None, "things", Some("x")),
            ),
            ("/readyz", None),
        ] {
            assert_eq!(Target::parse(path), expected, "{path}");
        }
        assert_eq!(
            parameter("a=b&fieldSelector=spec.nodeName%3Dn1", "fieldSelector").as_deref(),
            Some("spec.nodeName=n1")
        );
    }
}
