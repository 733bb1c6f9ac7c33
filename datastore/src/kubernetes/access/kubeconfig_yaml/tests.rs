//! Kubeconfigs in the forms that people and programs write.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;

use serde_json::{Value, json};

use super::*;
use crate::config::ProxyVariables;

/// A kubeconfig as kubectl writes it, with the keys of other programs.
const OF_KUBECTL: &str = r#"apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: LS0tLQo=
    extensions:
    - extension:
        audience: foo
        last-update: Thu, 18 Feb 2021 16:59:26 PST
      name: client.authentication.k8s.io/exec
    insecure-skip-tls-verify: false
    server: https://[fd00::1]:6443
    tls-server-name: api
    x-other: [1, true, null, {a: b}]
  name: arn:aws:eks:us-west-2:1234:cluster/eks
contexts:
- context: {cluster: "arn:aws:eks:us-west-2:1234:cluster/eks", namespace: 'default', user: admin}
  name: main
current-context: main
kind: Config
preferences: {}
users:
- name: admin
  user:
    as: other
    as-groups: [a, "b"]
    as-user-extra:
      scopes:
      - read
    exec:
      apiVersion: client.authentication.k8s.io/v1
      args:
      - get-token
      command: aws
      env:
      - name: AWS_PROFILE
        value: main
      installHint: |
        Install it.
      interactiveMode: IfAvailable
      provideClusterInfo: true
    password: "p: #w"
    username: u # a comment
- name: nobody
  user:
"#;

fn values(kubeconfig: &Kubeconfig) -> Value {
    serde_json::to_value(kubeconfig).unwrap()
}

#[test]
fn kubeconfig_is_read_as_kube_reads_it() {
    let other = "kind: Config\nusers:\n- name: admin\n  user: {token: second}\n- name: more\n  \
                 user: {token: t}\n";
    for text in [
        OF_KUBECTL,
        &other.replace('\n', "\r\n"),
        &format!("---\n{OF_KUBECTL}---\n{other}---\n"),
        &format!("{other}---\n# only a comment\n---\n{OF_KUBECTL}"),
        &json!({ "clusters": [], "users": null, "current-context": "c", "extra": { "a": 1 } })
            .to_string(),
        "",
        "# only a comment\n",
        "null\n",
        "---\n---\n",
    ] {
        assert_eq!(
            values(&parse(text).unwrap()),
            values(&Kubeconfig::from_yaml(text).unwrap()),
            "{text}"
        );
    }
}

#[test]
fn first_document_precedes_the_later_ones() {
    let text = "current-context: a\nusers:\n- name: u\n  user: {token: one}\n---\ncurrent-context: \
                b\nusers:\n\
                - name: u\n  user: {token: two, username: n}\n- name: v\n  user: {token: three}\n";
    let merged = values(&parse(text).unwrap());
    assert_eq!(merged["current-context"], "a");
    let users = json!([
        { "name": "u", "user": { "token": "one" } }, { "name": "v", "user": { "token": "three" } },
    ]);
    assert_eq!(merged["users"], users);
    let error = parse("kind: Config\n---\nkind: Pod\n")
        .unwrap_err()
        .to_string();
    assert!(error.contains("mismatching kind"), "{error}");
}

#[test]
fn plain_scalars_of_text_fields_stay_as_written() {
    for token in [
        "0123",
        "1e3",
        "true",
        "12345678901234567890123",
        "2001-01-01",
        "a:b",
        "0x1f",
    ] {
        let text = format!("users:\n- name: u\n  user:\n    token: {token}\n");
        assert_eq!(
            values(&parse(&text).unwrap())["users"][0]["user"]["token"],
            token
        );
    }
    let absent =
        values(&parse("users:\n- name: u\n  user:\n    token: ~\n    username: null\n").unwrap());
    assert_eq!(absent["users"][0]["user"], json!({}));
}

#[test]
fn aliases_are_followed_and_merge_keys_are_refused() {
    let text = "x: &user {token: t}\nusers:\n- name: u\n  user: *user\n";
    assert_eq!(
        values(&parse(text).unwrap())["users"][0]["user"]["token"],
        "t"
    );
    let base = "x: &x {server: s, cluster: k, token: t}\n";
    for merging in [
        "<<: *x\n",
        "clusters:\n- name: k\n  cluster: {<<: *x}\n",
        "clusters:\n- name: k\n  <<: *x\n",
        "users:\n- name: u\n  user:\n    <<: *x\n    username: n\n",
        "users:\n- name: u\n  user: {exec: {<<: *x, command: c}}\n",
        "contexts:\n- name: c\n  context: {<<: [*x], cluster: k}\n",
        "contexts:\n- name: c\n  context: {<<: *x}\n",
        "contexts:\n- {<<: *x}\n",
    ] {
        let error = parse(&format!("{base}{merging}")).unwrap_err();
        assert!(
            matches!(error, UnreadableKubeconfig::MergeKey),
            "{merging}{error}"
        );
    }
}

#[test]
fn paths_of_a_file_are_relative_to_its_folder() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kubeconfig");
    let user = |command: &str| {
        json!({ "client-certificate": "c.pem", "client-key": "/k.pem", "tokenFile": "../t",
                "exec": { "command": command } })
    };
    let content = json!({
        "clusters": [{ "name": "k", "cluster": { "certificate-authority": "ca.pem" } }],
        "users": [
            { "name": "u", "user": user("bin/plugin") }, { "name": "v", "user": user("aws") },
        ],
    });
    fs::write(&file, content.to_string()).unwrap();
    let read = values(&read_file(&file, &ClientPlace::Node).unwrap());
    let within = |path: &str| json!(dir.path().join(path).to_str().unwrap());
    assert_eq!(
        read["clusters"][0]["cluster"]["certificate-authority"],
        within("ca.pem")
    );
    let users = &read["users"];
    assert_eq!(users[0]["user"]["client-certificate"], within("c.pem"));
    assert_eq!(users[0]["user"]["client-key"], "/k.pem");
    assert_eq!(users[0]["user"]["tokenFile"], within("../t"));
    assert_eq!(users[0]["user"]["exec"]["command"], within("bin/plugin"));
    assert_eq!(users[1]["user"]["exec"]["command"], "aws");
    assert_eq!(read, values(&Kubeconfig::read_from(&file).unwrap()));
}

#[test]
fn encodings_are_recognized_by_the_byte_order_mark() {
    let text = "current-context: größe\n";
    let marked = format!("\u{feff}{text}");
    let wide =
        |bytes: fn(u16) -> [u8; 2]| marked.encode_utf16().flat_map(bytes).collect::<Vec<u8>>();
    let contents = [
        wide(u16::to_le_bytes),
        wide(u16::to_be_bytes),
        text.into(),
        marked.clone().into(),
    ];
    for content in contents {
        let kubeconfig = parse(&decode(&content).unwrap()).unwrap();
        assert_eq!(
            kubeconfig.current_context.as_deref(),
            Some("größe"),
            "{content:?}"
        );
    }
    for invalid in [
        &b"a: \xFF"[..],
        b"\xFF\xFEa",
        b"\xFE\xFF\xD8\x00",
        b"\xEF\xBB\xBF\xFF",
    ] {
        assert!(decode(invalid).is_none(), "{invalid:?}");
    }
}

#[test]
fn missing_and_unreadable_files_name_the_cause() {
    let dir = tempfile::tempdir().unwrap();
    let error = |file: &Path| read_file(file, &ClientPlace::Node).unwrap_err().to_string();
    assert_eq!(
        error(&dir.path().join("none")),
        "cannot read the file: No such file or directory (os error 2)"
    );
    let file = dir.path().join("kubeconfig");
    fs::write(&file, [0xFF]).unwrap();
    assert!(
        error(&file).starts_with("the text is neither UTF-8 nor UTF-16"),
        "{}",
        error(&file)
    );
    fs::write(&file, "users:\n- name: u\n  user: {token: secret\n").unwrap();
    let text = error(&file);
    assert!(
        text.starts_with("line ") && text.ends_with("not the YAML of a kubeconfig, or truncated"),
        "{text}"
    );
}

#[test]
fn special_oversized_and_deeply_nested_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let error = |file: &Path| read_file(file, &ClientPlace::Node).unwrap_err().to_string();
    let fifo = dir.path().join("fifo");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    for path in [&fifo, Path::new("/dev/zero"), dir.path()] {
        assert!(error(path).contains("no regular file"), "{}", error(path));
    }
    let file = dir.path().join("kubeconfig");
    fs::write(
        &file,
        format!("kind: Config\nusers: {}", "{a: ".repeat(100_000)),
    )
    .unwrap();
    assert!(
        error(&file).starts_with("line 2: the YAML is nested deeper"),
        "{}",
        error(&file)
    );
    fs::write(&file, " ".repeat(MAX_SIZE + 1)).unwrap();
    assert!(
        error(&file).contains("more than 16777216 bytes"),
        "{}",
        error(&file)
    );
}

fn pipe() -> (io::PipeReader, io::PipeWriter, PathBuf) {
    let (reader, writer) = io::pipe().unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", reader.as_raw_fd()));
    (reader, writer, path)
}

// Both pipes are read in this test, because two pipes in turn could have the same path.
#[test]
fn pipe_is_read_once_and_its_text_remembered() {
    let (_reader, mut writer, path) = pipe();
    let reading = std::thread::spawn({
        let path = path.clone();
        move || contents_of_person(&path, 4)
    });
    writer.write_all(b"a: 1").unwrap();
    drop(writer);
    assert_eq!(reading.join().unwrap().unwrap(), b"a: 1");
    read_file(&path, &ClientPlace::Workstation(ProxyVariables::default())).unwrap();
    let on_node = read_file(&path, &ClientPlace::Node)
        .unwrap_err()
        .to_string();
    assert!(on_node.contains("it is no regular file"), "{on_node}");

    let (_reader, mut writer, path) = pipe();
    writer.write_all(b"too long").unwrap();
    assert_eq!(
        contents_of_person(&path, 4).unwrap_err().to_string(),
        "it has more than 4 bytes"
    );
    assert_eq!(
        contents_of_person(Path::new("/dev/zero"), 4)
            .unwrap_err()
            .kind(),
        ErrorKind::InvalidInput
    );
}
