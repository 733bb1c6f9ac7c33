//! The name of the file that Felix writes when the policy of an endpoint is in place.

/// Returns `k8s default%2Fweb-0 eth0` for the endpoint `eth0` of the pod `default/web-0` (CNI-93).
pub fn endpoint_status_file(orchestrator: &str, namespace: &str, workload: &str, endpoint: &str) -> String {
    [escape(orchestrator), escape(&format!("{namespace}/{workload}")), escape(endpoint)].join(" ")
}

/// Escapes a path segment as Go's `url.PathEscape` does.
fn escape(segment: &str) -> String {
    let mut escaped = String::with_capacity(segment.len());
    for byte in segment.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => escaped.push(char::from(byte)),
            b'-' | b'_' | b'.' | b'~' | b'$' | b'&' | b'+' | b'=' | b':' | b'@' => escaped.push(char::from(byte)),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_escaped_and_joined_by_blanks() {
        assert_eq!(endpoint_status_file("k8s", "default", "testpod1", "eth0"), "k8s default%2Ftestpod1 eth0");
        assert_eq!(endpoint_status_file("a b", "n", "p%,;?ä", "e:0@~"), "a%20b n%2Fp%25%2C%3B%3F%C3%A4 e:0@~");
    }
}
